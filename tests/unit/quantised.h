/* Quantised operands for a problem of support.h, in the tests' own words: codes by enumeration, scales and places by the formulas
 * of docs/formats.md. Nothing here calls the library. An operand of F64 is quantised into the copy that the product should read,
 * and then holds what that copy means, so that problem_reference follows it. */
#ifndef TEGROUP_TESTS_QUANTISED_H
#define TEGROUP_TESTS_QUANTISED_H

#include "support.h"

/* ---- types of 8 and 4 bits ---- */

SUPPORT double decode_small(tegroup_dtype dtype, unsigned code) {
    const int mantissa_bits = dtype == TEGROUP_DTYPE_F8E4M3 ? 3 : dtype == TEGROUP_DTYPE_F8E5M2 ? 2 : 1;
    const int bits = dtype == TEGROUP_DTYPE_F4E2M1 ? 4 : 8, bias = dtype == TEGROUP_DTYPE_F8E4M3 ? 7 : dtype == TEGROUP_DTYPE_F8E5M2 ? 15 : 1;
    const unsigned magnitude = code & ((1u << (bits - 1)) - 1);
    const int exponent = (int)(magnitude >> mantissa_bits), mantissa = (int)(magnitude & ((1u << mantissa_bits) - 1));
    const double sign = code >> (bits - 1) & 1 ? -1 : 1;
    if (dtype == TEGROUP_DTYPE_F8E8M0) return code == 255 ? (double)NAN : ldexp(1, (int)code - 127);
    if (dtype == TEGROUP_DTYPE_F8E4M3 && magnitude == 0x7f) return NAN;
    if (dtype == TEGROUP_DTYPE_F8E5M2 && exponent == 31) return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias);
}
/* The value of each code, worked out once. */
SUPPORT const double *small_values(tegroup_dtype dtype) {
    static double values[TEGROUP_DTYPE_COUNT][256];
    if (values[dtype][1] == 0)
        for (unsigned code = 0; code < 256; code++) values[dtype][code] = decode_small(dtype, dtype == TEGROUP_DTYPE_F4E2M1 ? code & 15 : code);
    return values[dtype];
}
SUPPORT unsigned largest_small(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F8E4M3 ? 0x7e : dtype == TEGROUP_DTYPE_F8E5M2 ? 0x7b : dtype == TEGROUP_DTYPE_F4E2M1 ? 7 : 254;
}
/* The code of a value near x, of those that there are: codes of magnitudes are in the order of their values. */
SUPPORT unsigned nearest_small(tegroup_dtype dtype, double x) {
    const double *values = small_values(dtype);
    unsigned low = 0, high = largest_small(dtype);
    const unsigned sign = x < 0 ? (dtype == TEGROUP_DTYPE_F4E2M1 ? 8u : 0x80u) : 0u;
    x = fabs(x);
    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (values[middle] <= x) low = middle;
        else high = middle;
    }
    return sign | (x - values[low] < values[high] - x ? low : high);
}
SUPPORT void store_small(tegroup_dtype dtype, void *data, int64_t i, unsigned code) {
    unsigned char *bytes = (unsigned char *)data;
    if (dtype != TEGROUP_DTYPE_F4E2M1) bytes[i] = (unsigned char)code;
    else if (i % 2 == 0) bytes[i / 2] = (unsigned char)((bytes[i / 2] & 0xf0) | code);
    else bytes[i / 2] = (unsigned char)((bytes[i / 2] & 0x0f) | code << 4);
}
/* An interleaved code, by the pictures in docs/formats.md: whose bit of a half of a word is whose. */
SUPPORT void store_interleaved(tegroup_dtype dtype, void *data, int64_t i, unsigned code) {
    static const char *const pairs[] = {"0331332000111222", "0111100000001111"}, *const bits[] = {"s0ss21s210210210", "s654s65432103210"};
    const int eight = dtype != TEGROUP_DTYPE_F4E2M1, k = (int)(i % 64), step = k / 16, quarter = k % 8 / 2, h = k % 16 / 8;
    const int pair = eight ? h : step % 2 * 2 + h;
    unsigned char *word = (unsigned char *)data + (eight ? i / 64 * 64 + quarter * 16 + step * 4 : i / 64 * 32 + quarter * 8 + step / 2 * 4);
    for (int from = 0; from < 16; from++) {
        const int bit = 15 - from + k % 2 * 16, of = bits[eight][from] == 's' ? (eight ? 7 : 3) : bits[eight][from] - '0';
        if (pairs[eight][from] - '0' != pair) continue;
        word[bit / 8] = (unsigned char)((word[bit / 8] & ~(1u << bit % 8)) | (code >> of & 1u) << bit % 8);
    }
}
SUPPORT int64_t small_bytes(tegroup_dtype dtype, int64_t elements) { return dtype == TEGROUP_DTYPE_F4E2M1 ? (elements + 1) / 2 : elements; }

/* ---- scalings ---- */

typedef struct scaling_row {
    tegroup_scaling scaling;
    tegroup_dtype scale;               /* F32, F8E8M0, F8E4M3                                  */
    int64_t outer, inner, choice;      /* of a stored scale, 0 = all; rows that it is chosen for */
} scaling_row;

static const scaling_row scaling_rows[] = {
    {TEGROUP_SCALING_TENSOR, TEGROUP_DTYPE_F32, 0, 0, 0},          {TEGROUP_SCALING_ROW, TEGROUP_DTYPE_F32, 1, 0, 1},
    {TEGROUP_SCALING_BLOCK_1X128, TEGROUP_DTYPE_F32, 1, 128, 1},   {TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F32, 128, 128, 128},
    {TEGROUP_SCALING_BLOCK_32X32, TEGROUP_DTYPE_F32, 32, 32, 32},  {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E8M0, 1, 32, 1},
    {TEGROUP_SCALING_MXFP8_32X32, TEGROUP_DTYPE_F8E8M0, 1, 32, 32},{TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F8E8M0, 1, 32, 1},
    {TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F8E4M3, 1, 16, 1},       {TEGROUP_SCALING_NVFP4_16X16, TEGROUP_DTYPE_F8E4M3, 1, 16, 16},
};
enum { SCALINGS = sizeof scaling_rows / sizeof *scaling_rows };

SUPPORT const scaling_row *scaling_row_of(tegroup_scaling scaling) {
    for (int i = 0; i < SCALINGS; i++)
        if (scaling_rows[i].scaling == scaling) return &scaling_rows[i];
    return NULL;
}
SUPPORT int is_fp4(tegroup_scaling s) { return s == TEGROUP_SCALING_MXFP4 || s == TEGROUP_SCALING_NVFP4 || s == TEGROUP_SCALING_NVFP4_16X16; }
SUPPORT int is_square(const scaling_row *f) { return f->choice == f->inner; }

/* How an operand is quantised, besides its scaling. */
typedef struct quantised {
    const scaling_row *f;
    tegroup_dtype dtype, scale_dtype; /* of the elements; of the scales, UNSET = the scaling's own */
    int64_t parts, outer_stride, inner_stride;
    int transposed, columnwise; /* order of the columnwise copy; which copy is read */
    int global, interleaved;
    int aligned; /* 1: buffers and rows begin at multiples of 16 bytes, and the copy that is summed along is the one that is read */
} quantised;

SUPPORT int64_t up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
SUPPORT int64_t blocks_of(int64_t extent, int64_t block) { return block == 0 ? 1 : (extent + block - 1) / block; }

/* Scales of one part of [rows, cols], padding included, in units of bytes for I32, else of scales. */
SUPPORT int64_t part_scales(const quantised *q, int64_t rows, int64_t cols, int cw) {
    const int64_t O = blocks_of(cw ? cols : rows, q->f->outer), I = blocks_of(cw ? rows : cols, q->f->inner);
    if (q->f->scaling == TEGROUP_SCALING_TENSOR) return 1;
    if (rows == 0 || cols == 0) return 0;
    if (q->scale_dtype == TEGROUP_DTYPE_I32) return up(I, 4) * up(O, 4);
    switch (q->f->scaling) {
    case TEGROUP_SCALING_ROW: return O;
    case TEGROUP_SCALING_BLOCK_1X128: return I * up(O, 4);
    case TEGROUP_SCALING_BLOCK_128X128: return O * up(I, 4);
    case TEGROUP_SCALING_BLOCK_32X32: return O * I;
    default: return up(O, 128) * up(I, 4);
    }
}
/* Where in a part the scale of outer block o and inner block i is, in the default packing. */
SUPPORT int64_t packed_scale(const quantised *q, int64_t O, int64_t I, int64_t o, int64_t i) {
    if (q->f->scaling == TEGROUP_SCALING_TENSOR) return 0;
    if (q->scale_dtype == TEGROUP_DTYPE_I32) return (i / 4 * up(O, 4) + o) * 4 + i % 4;
    switch (q->f->scaling) {
    case TEGROUP_SCALING_ROW: return o;
    case TEGROUP_SCALING_BLOCK_1X128: return i * up(O, 4) + o;
    case TEGROUP_SCALING_BLOCK_128X128: return o * up(I, 4) + i;
    case TEGROUP_SCALING_BLOCK_32X32: return o * I + i;
    default: return (o / 128 * (up(I, 4) / 4) + i / 4) * 512 + o % 32 * 16 + o / 32 % 4 * 4 + i % 4;
    }
}

/* The scale nearest to x that a type has, as what is stored of it; never 0. */
SUPPORT double scale_near(tegroup_dtype type, double x) {
    if (type == TEGROUP_DTYPE_F8E8M0) return ldexp(1, (int)rint(log2(x)));
    if (type == TEGROUP_DTYPE_F8E4M3) return decode_small(type, nearest_small(type, x < 0x1p-6 ? 0x1p-6 : x));
    return rounded(type, x);
}
SUPPORT void scale_store(tegroup_dtype type, void *scales, int64_t at, double x) {
    if (type == TEGROUP_DTYPE_F8E8M0) ((unsigned char *)scales)[at] = (unsigned char)(127 + (int)log2(x));
    else if (type == TEGROUP_DTYPE_F8E4M3) ((unsigned char *)scales)[at] = (unsigned char)nearest_small(type, x);
    else store(type, scales, at, x);
}

/* One copy of an operand: buffers of just the size, full of what must not be read (NaN, where the type has it). */
typedef struct copy_made {
    void *data, *scales, **data_list, **scale_list;
} copy_made;

SUPPORT void *unread(int64_t bytes, int64_t skew) {
    void *data = guarded_skewed((size_t)bytes, (size_t)skew);
    memset(data, 0xff, (size_t)bytes);
    return data;
}

/* One copy; fills: of what the operand holds, which becomes what the copy means. Else nothing in it may be read. */
SUPPORT copy_made copy_make(const problem *p, grid *t, const tegroup_tensor *shape, const quantised *q, int cw, rng *r, const double *global,
                            int fills) {
    const int ragged = shape->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET, listed = shape->pointers_space != TEGROUP_SPACE_UNSET;
    const int irregular = shape->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET || shape->shape.elements > 0;
    const int strided = !cw && q->outer_stride > 0, transposed = cw && q->transposed, words = q->scale_dtype == TEGROUP_DTYPE_I32;
    const tegroup_dtype type = words ? TEGROUP_DTYPE_F8E8M0 : q->scale_dtype != TEGROUP_DTYPE_UNSET ? q->scale_dtype : q->f->scale;
    const int64_t size = words ? 1 : type == TEGROUP_DTYPE_F8E8M0 || type == TEGROUP_DTYPE_F8E4M3 ? 1 : (int64_t)size_of(type);
    const int32_t G = p->s.groups;
    int64_t elements = 0, stored = 0, *first = (int64_t *)malloc((size_t)G * 16 + 16), *scale_first = first + G;
    copy_made made;
    memset(&made, 0, sizeof made);
    if (listed) {
        made.data_list = (void **)unread((int64_t)sizeof(void *) * G, 0);
        made.scale_list = (void **)unread((int64_t)sizeof(void *) * G, 0);
    }
    for (int32_t g = 0; g < G; g++) { /* places */
        const int64_t R = t->rows[g], C = t->cols[g], ld = irregular ? t->ld[g] : shape->ld != 0 ? shape->ld : C, O = blocks_of(R / q->parts, q->f->outer);
        const int64_t each = transposed ? up(R, 32) * C : R > 0 && C > 0 ? (R - 1) * ld + C : 0;
        const int64_t all = q->parts * part_scales(q, R / q->parts, C, cw), I = blocks_of(C, q->f->inner);
        int64_t reach = all;
        if (strided) reach = R == 0 || C == 0 ? 0 : ((O * q->parts - 1) * q->outer_stride + ((words ? up(I, 4) / 4 : I) - 1) * q->inner_stride + 1) * (words ? 4 : 1);
        if (listed) {
            first[g] = scale_first[g] = 0;
            made.data_list[g] = unread(small_bytes(q->dtype, each), q->aligned ? 0 : R % 4);
            made.scale_list[g] = unread(reach * size, q->aligned ? 0 : (R + C) % 4 * (words ? 4 : size));
            continue;
        }
        const int64_t start = (t->at[g] - (unsigned char *)t->tensor.data) / 8 / (t->ld[g] > 0 ? t->ld[g] : 1); /* of ragged rows */
        first[g] = transposed ? elements : irregular ? (t->at[g] - (unsigned char *)t->tensor.data) / 8
                                                     : ragged ? start * ld : g * (shape->group_stride != 0 ? shape->group_stride : R * ld);
        if (transposed) elements += each;
        else if (first[g] + each > elements) elements = first[g] + each;
        scale_first[g] = !strided ? stored : (ragged ? start : g * O * q->parts) * q->outer_stride * (words ? 4 : 1);
        if (!strided) stored += all;
        else if (reach > 0 && scale_first[g] + reach > stored) stored = scale_first[g] + reach;
    }
    if (!listed && ragged) { /* room for any sizes of groups: most is needed where all but one have one row */
        const int64_t rows = shape->shape.rows, C = shape->shape.cols, ld = shape->ld != 0 ? shape->ld : C;
        const int64_t some = rows < G ? rows : G, others = some > 0 ? some - 1 : 0;
        const int64_t longest = some > 0 ? rows - others : 0;
        const int64_t as_data = irregular ? shape->shape.elements : rows > 0 ? (rows - 1) * ld + C : 0;
        const int64_t room = transposed ? (up(longest, 32) + 32 * others) * C : as_data;
        const int64_t I = blocks_of(C, q->f->inner), O = blocks_of(rows, q->f->outer), line = words ? up(I, 4) / 4 : I;
        const int64_t last = (O - 1) * q->outer_stride + (line - 1) * q->inner_stride;
        const int64_t reach = rows > 0 && I > 0 ? last + 1 : 0;
        const int64_t all = strided ? reach * (words ? 4 : 1)
                            : q->f->scaling == TEGROUP_SCALING_TENSOR
                                ? G
                                : part_scales(q, longest, C, cw) + others * part_scales(q, 1, C, cw);
        if (room > elements) elements = room;
        if (all > stored) stored = all;
    }
    if (!listed) {
        made.data = unread(small_bytes(q->dtype, elements), q->aligned ? 0 : elements % 4);
        made.scales = unread(stored * size, q->aligned ? 0 : stored % 4 * (words ? 4 : size));
    }
    for (int32_t g = 0; g < G && fills; g++) {
        const int64_t R = t->rows[g], C = t->cols[g], ld = irregular ? t->ld[g] : shape->ld != 0 ? shape->ld : C, rows = R / q->parts;
        const int64_t choice_rows = cw ? q->f->inner : q->f->choice, choice_cols = cw ? q->f->choice : q->f->inner;
        void *data = listed ? made.data_list[g] : made.data, *scales = listed ? made.scale_list[g] : made.scales;
        if (q->f->scaling == TEGROUP_SCALING_TENSOR && R * C == 0)
            for (int64_t part = 0; part < q->parts; part++) scale_store(type, scales, scale_first[g] + part, 1);
        for (int64_t part = 0; part < q->parts; part++)
            for (int64_t r0 = 0; r0 < rows; r0 += choice_rows > 0 ? choice_rows : rows)
                for (int64_t c0 = 0; c0 < C; c0 += choice_cols > 0 ? choice_cols : C) {
                    const int64_t r1 = choice_rows > 0 && r0 + choice_rows < rows ? r0 + choice_rows : rows, c1 = choice_cols > 0 && c0 + choice_cols < C ? c0 + choice_cols : C;
                    const int64_t O = blocks_of(cw ? C : rows, q->f->outer), I = blocks_of(cw ? rows : C, q->f->inner);
                    double amax = 0, scale;
                    for (int64_t i = r0; i < r1; i++)
                        for (int64_t j = c0; j < c1; j++) amax = fmax(amax, fabs(load(t->dtype, t->at[g], (part * rows + i) * t->ld[g] + j)));
                    scale = scale_near(type, (amax > 0 ? amax : 1) / decode_small(q->dtype, largest_small(q->dtype)) / global[g] * exp2(3 * rng_unit(r)));
                    for (int64_t i = r0; i < r1; i++)
                        for (int64_t j = c0; j < c1; j++) {
                            const int64_t row = part * rows + i, at = row * t->ld[g] + j;
                            const int64_t o = cw ? j : i, in = cw ? i : j, ob = q->f->outer > 0 ? o / q->f->outer : 0, ib = q->f->inner > 0 ? in / q->f->inner : 0;
                            const unsigned code = nearest_small(q->dtype, load(t->dtype, t->at[g], at) / scale / global[g]);
                            const int64_t place = strided ? ((part * O + ob) * q->outer_stride + (words ? ib / 4 : ib) * q->inner_stride) * (words ? 4 : 1) + (words ? ib % 4 : 0)
                                                          : part * part_scales(q, rows, C, cw) + packed_scale(q, O, I, ob, ib);
                            const int64_t element = first[g] + (transposed ? j * up(R, 32) + row : row * ld + j);
                            if (q->interleaved) store_interleaved(q->dtype, data, element, code);
                            else store_small(q->dtype, data, element, code);
                            scale_store(type, scales, scale_first[g] + place, scale);
                            store(t->dtype, t->at[g], at, small_values(q->dtype)[code] * scale * global[g]);
                        }
                }
    }
    free(first);
    return made;
}

/* Puts a quantised tensor in the place of operand `which` (0 a, 1 b) of a problem whose operand is of F64. */
SUPPORT void quantise_operand(problem *p, int which, quantised *q, rng *r) {
    grid *t = which ? &p->b : &p->a;
    tegroup_tensor *to = which ? &p->desc.b : &p->desc.a;
    const int sums_rows = p->s.op == TEGROUP_OP_WGRAD || (which && p->s.op == TEGROUP_OP_DGRAD);
    const int ragged = to->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET;
    double *global = (double *)malloc((size_t)p->s.groups * 8 + 8);
    to->dtype = q->dtype;
    to->scaling = q->f->scaling;
    to->scale_dtype = q->scale_dtype;
    to->scale_parts = q->parts > 1 || rng_chance(r, 50) ? (int32_t)q->parts : 0;
    if (ragged) to->scale_parts = 0;
    to->columnwise_order = q->transposed ? TEGROUP_COLUMNWISE_TRANSPOSED : TEGROUP_COLUMNWISE_AS_DATA;
    if (is_fp4(q->f->scaling)) { /* rows begin with a byte */
        const int64_t ld = up(to->ld != 0 ? to->ld : to->shape.cols, 2);
        to->ld = ld != to->shape.cols ? ld : 0;
        if (to->group_stride != 0) to->group_stride = to->shape.rows * ld + 2 * rng_int(r, 1, 3);
    }
    if (q->aligned) {
        const int64_t ld = up(to->ld != 0 ? to->ld : to->shape.cols, 16);
        to->ld = ld != to->shape.cols ? ld : 0;
        if (to->group_stride != 0) to->group_stride = to->shape.rows * ld + 16 * rng_int(r, 1, 3);
    }
    if (q->interleaved) { /* both copies have whole blocks */
        const int64_t ld = up(to->ld != 0 ? to->ld : to->shape.cols, 64);
        to->ld = ld != to->shape.cols ? ld : 0;
        if (to->group_stride != 0) to->group_stride = to->shape.rows * ld + 64 * rng_int(r, 1, 3);
        to->code_order = TEGROUP_CODES_INTERLEAVED;
    }
    if (q->outer_stride > 0) {
        const int64_t I = blocks_of(to->shape.cols, q->f->inner), O = blocks_of(to->shape.rows / q->parts, q->f->outer) * q->parts;
        const int64_t all = O * (ragged || to->pointers_space != TEGROUP_SPACE_UNSET ? 1 : to->shape.groups), words = q->scale_dtype == TEGROUP_DTYPE_I32 ? (I + 3) / 4 : I;
        if (rng_chance(r, 50)) { q->inner_stride = rng_int(r, 1, 2); q->outer_stride = (words > 0 ? words : 1) * q->inner_stride + rng_int(r, 0, 2); }
        else { q->outer_stride = rng_int(r, 1, 2); q->inner_stride = all * q->outer_stride + rng_int(r, 1, 3); }
    }
    to->scale_outer_stride = q->outer_stride;
    to->scale_inner_stride = q->inner_stride;
    for (int32_t g = 0; g < p->s.groups; g++) global[g] = 1;
    if (q->global) {
        to->global_scale_inv = (float *)guarded((size_t)p->s.groups * 4);
        for (int32_t g = 0; g < p->s.groups; g++) to->global_scale_inv[g] = (float)(global[g] = (double)(float)exp2(4 * rng_unit(r) - 2));
        guarded_remember(to->global_scale_inv);
    }
    const int both = is_square(q->f) && !q->aligned && !q->interleaved && rng_chance(r, 50); /* the rowwise copy serves */
    q->columnwise = sums_rows && !both;
    for (int cw = 0; cw < 2; cw++) {
        const int read = cw == q->columnwise;
        copy_made made;
        memset(&made, 0, sizeof made);
        if (read || (rng_chance(r, 25) && !(cw && both))) made = copy_make(p, t, to, q, cw, r, global, read);
        if (!cw) {
            to->data = made.data; to->scale_inv = made.scales;
            to->pointers = made.data_list; to->scale_pointers = made.scale_list;
        } else {
            to->columnwise_data = made.data; to->columnwise_scale_inv = made.scales;
            to->columnwise_pointers = made.data_list; to->columnwise_scale_pointers = made.scale_list;
        }
        void *const buffers[] = {made.data, made.scales, made.data_list, made.scale_list};
        for (int i = 0; i < 4; i++) if (buffers[i] != NULL) guarded_remember(buffers[i]);
        for (int32_t g = 0; g < p->s.groups && made.data_list != NULL; g++) { guarded_remember(made.data_list[g]); guarded_remember(made.scale_list[g]); }
    }
    free(global);
}

#endif
