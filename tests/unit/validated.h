/* Random quantised tensors in which something is wrong, and what tegroup_validate must find there: codes and scales by numbers.h,
 * places by quantize.h and scales.h. Nothing of the library's arithmetic is used. */
#ifndef TEGROUP_TESTS_VALIDATED_H
#define TEGROUP_TESTS_VALIDATED_H

#include "quantize.h"

typedef struct validated {
    quantizing q;
    tegroup_validate_desc desc;
    tegroup_validation want;
    rng *r;
    double *scale[MOST_GROUPS][MOST_PARTS]; /* of each block, [outer][inner] */
} validated;

SUPPORT void store_code(tegroup_dtype dtype, void *data, int64_t i, unsigned code) {
    unsigned char *at = (unsigned char *)data + (dtype == TEGROUP_DTYPE_F4E2M1 ? i / 2 : i);
    if (dtype != TEGROUP_DTYPE_F4E2M1) *at = (unsigned char)code;
    else *at = (unsigned char)(i % 2 == 0 ? (*at & 0xF0) | code : (*at & 0x0F) | code << 4);
}

SUPPORT float random_scale(rng *r) {
    const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -1.5f, -1e-40f};
    if (rng_chance(r, 4)) return wrong[rng_int(r, 0, 7)];
    return (float)ldexp(1 + rng_unit(r), rng_chance(r, 10) ? (int)rng_int(r, 110, 127) : (int)rng_int(r, -20, 20));
}

/* Counts a scale, and notes the lowest place of a wrong one. */
SUPPORT void count_scale(tegroup_validation_scales *scales, double x, int64_t *first, int64_t at) {
    if (isnan(x)) scales->nans++;
    else if (x == 0) scales->zeros++;
    else if (x < 0) scales->negatives++;
    else if (isinf(x)) scales->infinities++;
    else return;
    if (*first < 0 || at < *first) *first = at;
}

SUPPORT void validated_scale(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    validated *v = (validated *)context;
    const int columnwise = v->desc.columnwise;
    const depot *s = &v->q.scales[columnwise];
    unsigned char *at = scale_address(s, g, index);
    const float x = random_scale(v->r);
    uint32_t bits, low = 0;
    float kept = x;
    double value;
    if (outer >= outer_blocks(s, g) || inner >= inner_blocks(s, g)) return; /* padding stays what it is */
    memcpy(&bits, &x, 4);
    switch (s->dtype) {
    case TEGROUP_DTYPE_F32: memcpy(at, &bits, 4); value = (double)x; break;
    case TEGROUP_DTYPE_BF16: /* its bits may be what a narrower one leaves of them: a NaN stays one */
        low = bits & 0xffff0000u;
        memcpy(&kept, &low, 4);
        memcpy(at, (const unsigned char *)&bits + 2, 2);
        value = (double)kept;
        break;
    default: /* a code, each of them now and then */
        *at = (unsigned char)(rng_chance(v->r, 10) ? rng_int(v->r, 0, 255) : s->dtype == TEGROUP_DTYPE_F8E4M3 ? rng_int(v->r, 1, 0x7e) : rng_int(v->r, 100, 150));
        value = small_value(s->dtype == TEGROUP_DTYPE_F8E4M3 ? TEGROUP_DTYPE_F8E4M3 : TEGROUP_DTYPE_F8E8M0, *at);
    }
    v->scale[g][part][outer * inner_blocks(s, g) + inner] = value;
    if (s->rows[g] == 0 || s->cols == 0) return; /* nobody's scale does not count */
    count_scale(&v->want.scales, value, &v->want.scales.first, index);
}

SUPPORT void validated_values(validated *v, int32_t g, float global) {
    const int columnwise = v->desc.columnwise;
    const depot *s = &v->q.scales[columnwise];
    const tegroup_tensor *t = &v->desc.tensor;
    const scaling_row f = row_of(s->scaling);
    const int64_t part_rows = s->rows[g] / s->parts;
    tegroup_validation_values *found = &v->want.owned;
    for (int64_t row = 0; row < s->rows[g]; row++)
        for (int64_t col = 0; col < s->cols; col++) {
            const int64_t outer = columnwise ? col : row % part_rows, inner = columnwise ? row % part_rows : col;
            const int64_t block = (f.block_outer > 0 ? outer / f.block_outer : 0) * inner_blocks(s, g) + (f.block_inner > 0 ? inner / f.block_inner : 0);
            const unsigned codes = small_codes(t->dtype), wild = rng_chance(v->r, 2);
            const unsigned code = (unsigned)rng_int(v->r, 0, codes - 1);
            const unsigned tame = code & (codes / 2 - 1) & (t->dtype == TEGROUP_DTYPE_F8E5M2 ? 0x3f : 0x7e);
            const double x = small_value(t->dtype, wild ? code : tame) * v->scale[g][row / part_rows][block] * (double)global;
            const int64_t number = s->ragged ? s->start[g] + row : g * t->shape.rows + row;
            store_code(t->dtype, v->q.list[columnwise][0], expected_place(&v->q, columnwise, g, row, col), wild ? code : tame);
            if (isnan(x)) found->nans++;
            else if (isinf((float)x)) found->infinities++;
            else continue;
            if (found->first_row < 0 || number < found->first_row || (number == found->first_row && col < found->first_col)) {
                found->first_row = number;
                found->first_col = col;
            }
        }
}

/* A tensor and its record, in memory that guards_release takes back. */
SUPPORT void validated_make(validated *v, rng *r) {
    memset(v, 0, sizeof *v);
    do quantizing_make(&v->q, r, (tegroup_scaling)0, 12, 150);
    while (v->q.scales[0].listed);
    v->r = r;
    v->desc.struct_size = sizeof v->desc;
    v->desc.space = TEGROUP_SPACE_HOST;
    v->desc.tensor = v->q.desc.output;
    v->desc.columnwise = v->q.has[0] && v->q.has[1] ? (int32_t)rng_int(r, 0, 1) : v->q.has[1];
    v->desc.result = (tegroup_validation *)guarded(sizeof *v->desc.result);
    v->want.magic = TEGROUP_VALIDATION_MAGIC;
    v->want.bad_group = -1;
    v->want.owned.first_row = v->want.owned.first_col = v->want.tail.first_row = v->want.tail.first_col = -1;
    v->want.scales.first = v->want.scales.first_global = -1;
    const depot *s = &v->q.scales[v->desc.columnwise];
    for (int32_t g = 0; g < s->groups; g++)
        for (int64_t part = 0; part < s->parts; part++)
            v->scale[g][part] = (double *)scratch((size_t)(outer_blocks(s, g) * inner_blocks(s, g) + 1) * sizeof(double));
    walk(s, validated_scale, v);
    for (int32_t g = 0; g < s->groups; g++) {
        float *const globals = v->desc.tensor.global_scale_inv;
        if (globals != NULL) globals[g] = random_scale(r);
        if (globals != NULL && s->rows[g] > 0 && s->cols > 0) count_scale(&v->want.scales, (double)globals[g], &v->want.scales.first_global, g);
        validated_values(v, g, globals != NULL ? globals[g] : 1.0f);
    }
    if (v->want.owned.first_row >= 0) v->want.status |= TEGROUP_VALIDATION_VALUES;
    if (v->want.scales.nans + v->want.scales.infinities + v->want.scales.negatives > 0) v->want.status |= TEGROUP_VALIDATION_SCALES;
    if (v->want.scales.zeros > 0) v->want.status |= TEGROUP_VALIDATION_ZERO_SCALES;
}

#endif
