/* What the unit tests share: random numbers, guarded buffers, conversions of their own, random grouped problems and
 * an FP64 reference. The library is called by problem_prepare, problem_plan, problem_run and gather_copy, and for a snapshot's
 * size; everything else is worked out here. A program that is linked with the library defines TEGROUP_EXTERN before,
 * one that holds it TEGROUP_IMPLEMENTATION. */
#ifndef TEGROUP_TESTS_SUPPORT_H
#define TEGROUP_TESTS_SUPPORT_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SANITIZE_ADDRESS__)
#define SUPPORT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SUPPORT_ASAN 1
#endif
#endif
#if defined(SUPPORT_ASAN)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif
#include "tegroup.h"
#include "../../examples/check.h"

#if defined(__GNUC__)
#define SUPPORT static __attribute__((unused))
#else
#define SUPPORT static
#endif

/* ---- how much: TEGROUP_TEST_SCALE multiplies iteration counts ------------------------------------------------ */

SUPPORT int64_t scaled(int64_t count) {
    const char *text = getenv("TEGROUP_TEST_SCALE");
    double factor = text != NULL ? atof(text) : 1.0, value = (double)count * (factor > 0 ? factor : 1.0);
    return value < 1 ? 1 : (int64_t)value;
}

/* What takes minutes is left to `make test-more`, on a GPU to `make test-more-gpu`. */
SUPPORT int64_t in_the_long_suite(int64_t count, int64_t elsewhere) {
    const char *suite = getenv("SUITE");
    return suite != NULL && strncmp(suite, "more", 4) == 0 ? count : elsewhere;
}

/* ---- random numbers: xoshiro256** seeded by splitmix64 (Blackman, Vigna) -------------------------------------- */

typedef struct rng { uint64_t s[4]; } rng;

SUPPORT uint64_t splitmix64(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

SUPPORT rng rng_seed(uint64_t seed) {
    rng r;
    for (int i = 0; i < 4; i++) r.s[i] = splitmix64(&seed);
    return r;
}

SUPPORT uint64_t rng_rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

SUPPORT uint64_t rng_next(rng *r) {
    uint64_t *s = r->s, result = rng_rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0]; s[3] ^= s[1]; s[1] ^= s[2]; s[0] ^= s[3]; s[2] ^= t;
    s[3] = rng_rotl(s[3], 45);
    return result;
}

SUPPORT int64_t rng_int(rng *r, int64_t low, int64_t high) { /* both inclusive */
    return low + (int64_t)(rng_next(r) % ((uint64_t)(high - low) + 1));
}
SUPPORT int rng_chance(rng *r, int percent) { return rng_int(r, 0, 99) < percent; }
SUPPORT double rng_unit(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }
SUPPORT double rng_normal(rng *r) { /* the sum of four uniforms: near enough to normal, mean 0, variance 1, no outliers */
    double sum = -2;
    for (int i = 0; i < 4; i++) sum += rng_unit(r);
    return sum * 1.7320508075688772;
}
SUPPORT void rng_shuffle(rng *r, int32_t *list, int32_t count) {
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = (int32_t)rng_int(r, 0, i), t = list[i];
        list[i] = list[j]; list[j] = t;
    }
}

/* ---- guarded buffers ------------------------------------------------------------------------------------------
 * Each has its own malloc, guard bands on both sides, and poison inside: a pattern that is NaN as F64, F32, F16 and
 * BF16, negative as an integer, and differs from place to place. All live in one list: guards_changed() looks at every
 * band, guards_release(mark) frees what was made since the mark. Under ASan the bands may not even be read. */

/* Rounding of one F32 addition: 2^-24 where additions round, 2^-23 where tensor cores may truncate. */
#if !defined(SUPPORT_SUM_ROUNDING)
#define SUPPORT_SUM_ROUNDING 0x1p-24
#endif
/* What a product's sum may be off besides, as a share of the magnitudes that it sums. Where that is something, it is 33 * 2^-13
 * for each 32 of k with FAST_ACCUM. */
#if !defined(SUPPORT_SUM_SHARE)
#define SUPPORT_SUM_SHARE 0
#endif

#define GUARD_BYTES CHECK_BAND_BYTES

typedef struct guarded_node {
    struct guarded_node *older;
    unsigned char *raw, *data, *copy;
    size_t bytes;
    int scratch; /* 1: may be written freely, never compared */
} guarded_node;

static guarded_node *guarded_top;

SUPPORT void poison(void *data, size_t bytes) { check_poison(data, bytes); }

/* skew: bytes by which the buffer misses a multiple of 256, so that vector code cannot rely on more than it may */
SUPPORT void *guarded_skewed(size_t bytes, size_t skew) {
    guarded_node *node = (guarded_node *)malloc(sizeof *node);
    node->bytes = bytes;
    node->copy = NULL;
    node->scratch = 0;
    node->raw = (unsigned char *)malloc(bytes + 2 * GUARD_BYTES + 512);
    uintptr_t at = ((uintptr_t)node->raw + GUARD_BYTES + 255) / 256 * 256 + skew;
    node->data = node->raw + (at - (uintptr_t)node->raw);
    check_guard(node->data - GUARD_BYTES, bytes);
    ASAN_POISON_MEMORY_REGION(node->data - GUARD_BYTES, GUARD_BYTES);
    ASAN_POISON_MEMORY_REGION(node->data + bytes, GUARD_BYTES);
    node->older = guarded_top;
    guarded_top = node;
    return node->data;
}
SUPPORT void *guarded(size_t bytes) { return guarded_skewed(bytes, 0); }

SUPPORT guarded_node *guarded_find(const void *data) {
    guarded_node *node = guarded_top;
    while (node != NULL && node->data != (const unsigned char *)data) node = node->older;
    return node;
}

/* Number of guard bytes that changed, in every live buffer; the first is printed. */
SUPPORT int64_t guards_changed(void) {
    int64_t changed = 0;
    for (guarded_node *node = guarded_top; node != NULL; node = node->older) {
        ASAN_UNPOISON_MEMORY_REGION(node->data - GUARD_BYTES, GUARD_BYTES);
        ASAN_UNPOISON_MEMORY_REGION(node->data + node->bytes, GUARD_BYTES);
        int64_t first = 0, more = check_bands_changed(node->data, node->bytes, &first);
        if (more > 0 && changed == 0) fprintf(stderr, "guard byte %ld of a buffer of %lu bytes changed\n", (long)first, (unsigned long)node->bytes);
        changed += more;
        ASAN_POISON_MEMORY_REGION(node->data - GUARD_BYTES, GUARD_BYTES);
        ASAN_POISON_MEMORY_REGION(node->data + node->bytes, GUARD_BYTES);
    }
    return changed;
}

/* Remember a buffer's bytes, and count those that differ from what was remembered. */
SUPPORT void guarded_remember(const void *data) {
    guarded_node *node = guarded_find(data);
    if (node->copy == NULL) node->copy = (unsigned char *)malloc(node->bytes + 1);
    memcpy(node->copy, node->data, node->bytes);
}
SUPPORT const void *guarded_memory(const void *data) { return guarded_find(data)->copy; }
SUPPORT int64_t guarded_changed(const void *data) {
    guarded_node *node = guarded_find(data);
    int64_t changed = 0;
    if (memcmp(node->data, node->copy, node->bytes) == 0) return 0;
    for (size_t i = 0; i < node->bytes; i++) changed += node->data[i] != node->copy[i];
    return changed;
}

SUPPORT void *scratch(size_t bytes) {
    void *data = guarded(bytes);
    guarded_top->scratch = 1;
    return data;
}

SUPPORT void *guards_mark(void) { return guarded_top; }
SUPPORT void guards_release(void *mark) {
    while (guarded_top != NULL && guarded_top != (guarded_node *)mark) {
        guarded_node *node = guarded_top;
        guarded_top = node->older;
        ASAN_UNPOISON_MEMORY_REGION(node->data - GUARD_BYTES, GUARD_BYTES);
        ASAN_UNPOISON_MEMORY_REGION(node->data + node->bytes, GUARD_BYTES);
        free(node->raw);
        free(node->copy);
        free(node);
    }
}

/* ---- data types: the conversions of examples/check.h --------------------------------------------------------------- */

typedef check_facts float_facts;
SUPPORT float_facts facts_of(tegroup_dtype dtype) { return check_facts_of(dtype); }
SUPPORT size_t size_of(tegroup_dtype dtype) { return check_size_of(dtype); }
SUPPORT double unit_roundoff(tegroup_dtype dtype) { return check_roundoff(dtype); }
SUPPORT double smallest_step(tegroup_dtype dtype) { return check_smallest(dtype); }
SUPPORT double rounded(tegroup_dtype dtype, double x) { return check_rounded(dtype, x); }
SUPPORT uint16_t encode16(tegroup_dtype dtype, double x) { return check_encode16(dtype, x); }
SUPPORT double decode16(tegroup_dtype dtype, uint16_t code) { return check_decode16(dtype, code); }
SUPPORT double load(tegroup_dtype dtype, const void *data, int64_t i) { return check_load(dtype, data, i); }
SUPPORT void store(tegroup_dtype dtype, void *data, int64_t i, double x) { check_store(dtype, data, i, x); }

/* Fills: NORMAL values, small INTEGERS (sums stay exact), ONE_HOT (a one a row, elsewhere zero). */
typedef enum fill_kind { FILL_NORMAL, FILL_INTEGER, FILL_ONE_HOT } fill_kind;

SUPPORT void fill(rng *r, fill_kind kind, tegroup_dtype dtype, void *data, int64_t rows, int64_t cols, int64_t ld) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t hot = cols > 0 ? rng_int(r, 0, cols - 1) : 0;
        for (int64_t j = 0; j < cols; j++)
            store(dtype, data, i * ld + j,
                  kind == FILL_NORMAL ? rng_normal(r) : kind == FILL_INTEGER ? (double)rng_int(r, -3, 3) : (double)(j == hot));
    }
}

/* ---- random grouped problems ------------------------------------------------------------------------------------- */

typedef enum place_kind { PLACE_DENSE, PLACE_ALIGNED, PLACE_STRIDE, PLACE_STARTS } place_kind;
typedef enum pack_kind { PACK_DENSE, PACK_OFFSETS, PACK_LD, PACK_WINDOWS } pack_kind; /* WINDOWS: side by side in the rows of one buffer */
typedef enum c_kind { C_NONE, C_SEPARATE, C_IN_PLACE, C_ACCUMULATE } c_kind;
enum { SCALARS_DEFAULT, SCALARS_ONE, SCALARS_EACH };

/* What to build. Zero is the plain choice everywhere. The numbers in a row of a, b, c, bias depend on the seed, the
 * group's id and the row's number alone, so that the same rows can be put to the library in another grouping. */
typedef struct spec {
    tegroup_op op;
    int32_t groups;
    int64_t n, k;                /* widths of Y and X; with ng, kg the widest                       */
    int64_t rows_each;           /* rows of every group of a uniform problem                        */
    const int64_t *m;            /* [groups] rows, -1 = skipped; NULL = uniform                     */
    const int64_t *ng, *kg;      /* [groups] n and k of each group; NULL = n, k                     */
    const int32_t *group_id;     /* [groups] which numbers a group holds; NULL = its index          */
    const int64_t *row_first;    /* [groups] number of its first row; NULL = 0                      */
    tegroup_encoding encoding;   /* UNSET = COUNTS                                                  */
    tegroup_dtype index;         /* I32 or I64; UNSET = I64                                         */
    place_kind place;
    int64_t alignment;           /* for PLACE_ALIGNED                                               */
    pack_kind pack;              /* of irregular tensors                                            */
    int64_t tail_rows;           /* rows past the last group's                                      */
    tegroup_dtype in, out, bias_dtype, scalar_dtype, row_scale_dtype; /* UNSET: F32, in, out, F32, none */
    tegroup_dtype weights;       /* of W, as an operand, beside F32; UNSET: in                      */
    tegroup_compute compute;
    int64_t pad;                 /* leading dimensions exceed the widths by so much; with pad, groups have gaps too */
    int rounds_product;          /* 1: alpha times the sum may be rounded to out before C is added */
    int aligned;                 /* 1: buffers and padded groups begin at multiples of 16 bytes     */
    int apart;                   /* 1: so do rows of a and b, whatever their width                  */
    int64_t off;                 /* the leading dimensions of a and b exceed the widths by so much more, but where rows are
                                    gathered, ragged in a list, or of different widths                 */
    int32_t lists;               /* bit 0 a, 1 b, 2 c, 3 d, 4 bias                                  */
    int32_t gather;              /* bit 0 a, 1 b (WGRAD): rows picked by an index; ragged in rows alone */
    int alpha, beta;             /* SCALARS_*                                                       */
    c_kind c;
    int bias;                    /* 1 = with bias (WGRAD: bias gradient)                            */
    int bias_of_b;               /* WGRAD: 1 = of b's rows                                          */
    fill_kind fill_a, fill_b, fill_c;
    tegroup_tail tail;
    int32_t threads;
    int32_t clamp;               /* 1: sizes in host memory may lie                                 */
    int32_t roundings;           /* of a term, besides those of a product of values as they are     */
    uint64_t seed;
} spec;

/* Where each group's matrix lies, in the tests' own words, and the tensor that tells the library the same. */
typedef struct grid {
    tegroup_tensor tensor;
    tegroup_dtype dtype;
    int64_t *rows, *cols, *ld;
    unsigned char **at;
    int64_t *picked; /* [capacity] row of data that each row is, -1 = zeros; NULL = its own */
    int64_t *row0;   /* [groups] number of each group's first row, where picked             */
    tegroup_gather gather;
    void *snapshot; /* owned here: to be prepared; NULL = none or another grid's */
    int32_t clamp;
} grid;

typedef struct problem {
    spec s;
    void *mark;
    tegroup_gemm_desc desc;
    tegroup_plan plan;
    tegroup_error error;
    grid a, b, c, d, bias;
    int64_t *start, capacity, rows_end;
    void *row_scale, *alpha, *beta;
    double **want, **bound, **want_bias, **bound_bias; /* [groups], set by problem_reference */
    unsigned char **long_sum; /* [groups]: 1 where the bound is all but that of a sum of 32 terms or more */
} problem;

SUPPORT int64_t group_rows(const spec *s, int32_t g) { return s->m == NULL ? s->rows_each : s->m[g] < 0 ? 0 : s->m[g]; }
SUPPORT int64_t group_n(const spec *s, int32_t g) { return s->ng == NULL ? s->n : s->ng[g]; }
SUPPORT int64_t group_k(const spec *s, int32_t g) { return s->kg == NULL ? s->k : s->kg[g]; }
SUPPORT int group_skipped(const spec *s, int32_t g) { return s->m != NULL && s->m[g] < 0; }

SUPPORT double value_at(const grid *t, int32_t g, int64_t r, int64_t c) {
    if (t->picked == NULL) return load(t->dtype, t->at[g], r * t->ld[g] + c);
    r = t->picked[t->row0[g] + r];
    return r < 0 ? 0 : load(t->dtype, t->tensor.data, r * t->ld[g] + c);
}

SUPPORT rng row_rng(const spec *s, char role, int32_t g, int64_t row) {
    uint64_t state = s->seed * 31 + (uint64_t)role;
    splitmix64(&state);
    state ^= (uint64_t)(s->group_id != NULL ? s->group_id[g] : g) << 32;
    splitmix64(&state);
    state ^= (uint64_t)row;
    return rng_seed(splitmix64(&state));
}

/* Element skew of 0 to 3, so that nothing is better aligned than its type, unless it has to be. */
SUPPORT void *elements_new(tegroup_dtype dtype, int64_t elements, int aligned) {
    return guarded_skewed((size_t)elements * size_of(dtype), aligned ? 0 : (size_t)elements % 4 * size_of(dtype));
}

SUPPORT void *index_array(tegroup_dtype dtype, const int64_t *values, int32_t count) {
    void *data = guarded((size_t)count * size_of(dtype));
    for (int32_t i = 0; i < count; i++) {
        if (dtype == TEGROUP_DTYPE_I64) ((int64_t *)data)[i] = values[i];
        else ((int32_t *)data)[i] = (int32_t)values[i];
    }
    return data;
}

/* The rows of the ragged side: starts, capacity and the sizes as the library reads them. */
SUPPORT tegroup_sizes place_rows(problem *p) {
    const spec *s = &p->s;
    rng r = rng_seed(s->seed ^ 77);
    int32_t G = s->groups;
    int64_t *data = (int64_t *)scratch((size_t)(G + 1) * 8), at = 0, alignment = s->place == PLACE_ALIGNED ? s->alignment : 1;
    tegroup_sizes sizes;
    memset(&sizes, 0, sizeof sizes);
    p->start = (int64_t *)scratch((size_t)(G + 1) * 8);
    p->rows_end = 0;
    if (s->m == NULL) {
        for (int32_t g = 0; g < G; g++) p->start[g] = g * s->rows_each;
        p->capacity = p->rows_end = G * s->rows_each;
        return sizes;
    }
    sizes.encoding = s->encoding != TEGROUP_ENCODING_UNSET ? s->encoding : TEGROUP_ENCODING_COUNTS;
    sizes.dtype = s->index != TEGROUP_DTYPE_UNSET ? s->index : TEGROUP_DTYPE_I64;
    sizes.space = TEGROUP_SPACE_HOST;
    if (s->place == PLACE_ALIGNED) sizes.alignment = alignment;
    if (s->place == PLACE_STRIDE) {
        for (int32_t g = 0; g < G; g++) if (group_rows(s, g) > sizes.stride) sizes.stride = group_rows(s, g);
        sizes.stride += 1 + rng_int(&r, 0, 3);
    }
    int32_t *order = (int32_t *)scratch((size_t)(G + 1) * 4);
    for (int32_t g = 0; g < G; g++) order[g] = g;
    if (s->place == PLACE_STARTS) rng_shuffle(&r, order, G);
    for (int32_t i = 0; i < G; i++) {
        int32_t g = order[i];
        if (s->place == PLACE_STRIDE) at = g * sizes.stride;
        if (s->place == PLACE_STARTS) at += rng_int(&r, 0, 3);
        at = (at + alignment - 1) / alignment * alignment;
        p->start[g] = at;
        data[g] = sizes.encoding == TEGROUP_ENCODING_COUNTS ? s->m[g] : sizes.encoding == TEGROUP_ENCODING_ENDS ? at + group_rows(s, g) : at;
        at += group_rows(s, g);
        if (group_rows(s, g) > 0) p->rows_end = at;
    }
    if (sizes.encoding == TEGROUP_ENCODING_OFFSETS) data[G] = at;
    p->capacity = (s->place == PLACE_STRIDE ? G * sizes.stride : at) + s->tail_rows;
    sizes.data = index_array(sizes.dtype, data, G + (sizes.encoding == TEGROUP_ENCODING_OFFSETS));
    if (s->place == PLACE_STARTS) sizes.starts = index_array(sizes.dtype, p->start, G);
    return sizes;
}

/* An index for a tensor's rows, of groups that begin at start: rows that many share and rows that nobody picks, slots that are
 * negative or too large among them. Rows that no group owns pick one that nobody else does. */
SUPPORT void gather_make(const spec *s, grid *t, const int64_t *start, int64_t capacity, const int64_t *rows, char role) {
    rng r = row_rng(s, role, 0, -1);
    tegroup_gather *gather = &t->gather;
    int64_t *slot_of_row = (int64_t *)guarded((size_t)capacity * 8), slots = rng_int(&r, 1, 4);
    int zeros = rng_chance(&r, 70); /* per cent of problems that have rows of zeros */
    gather->slot_of_row = slot_of_row;
    gather->rows = rng_chance(&r, 10) ? 2 : 2 + rng_int(&r, 0, capacity * 2); /* the last is the one that nobody picks */
    gather->slots = slots == 1 && rng_chance(&r, 50) ? 0 : slots;
    t->picked = (int64_t *)scratch((size_t)capacity * 8);
    t->row0 = (int64_t *)scratch((size_t)s->groups * 8);
    for (int64_t i = 0; i < capacity; i++) {
        slot_of_row[i] = gather->rows * slots - 1;
        t->picked[i] = gather->rows - 1;
    }
    for (int32_t g = 0; g < s->groups; g++) {
        t->row0[g] = start[g];
        for (int64_t i = start[g]; i < start[g] + rows[g]; i++) {
            slot_of_row[i] = rng_int(&r, 0, (gather->rows - 1) * slots - 1);
            t->picked[i] = slot_of_row[i] / slots;
            if (!zeros || !rng_chance(&r, 15)) continue;
            slot_of_row[i] = rng_chance(&r, 60) ? -1 : rng_chance(&r, 50) ? gather->rows * slots + rng_int(&r, 0, 3)
                           : rng_chance(&r, 50) ? INT64_MAX : INT64_MIN;
            t->picked[i] = -1;
        }
    }
}

/* One tensor: rows[g] x cols[g], with cols NULL when all have `width`. sizes and start are those of its rows when
 * ragged; uniform otherwise. */
SUPPORT void grid_make(problem *p, grid *t, tegroup_dtype dtype, tegroup_sizes sizes, const int64_t *start, int64_t capacity,
                       const int64_t *rows, const int64_t *cols, int64_t width, int list, int gathered) {
    const spec *s = &p->s;
    int32_t G = s->groups;
    tegroup_shape *shape = &t->tensor.shape;
    int ragged = sizes.encoding != TEGROUP_ENCODING_UNSET;
    int64_t ld = width + s->pad, group_stride = 0, elements = 0, window = 3, element = (int64_t)size_of(dtype);
    if (s->apart && cols == NULL && (t == &p->a || t == &p->b)) ld = (ld * element + 15) / 16 * 16 / element;
    if (cols == NULL && !gathered && !(ragged && list) && (t == &p->a || t == &p->b)) ld += s->off;
    memset(t, 0, sizeof *t);
    t->dtype = t->tensor.dtype = dtype;
    t->clamp = s->clamp;
    t->rows = (int64_t *)scratch((size_t)G * 8);
    t->cols = (int64_t *)scratch((size_t)G * 8);
    t->ld = (int64_t *)scratch((size_t)G * 8);
    t->at = (unsigned char **)scratch((size_t)G * sizeof(void *));
    *shape = tegroup_shape_of(G, capacity, width, sizes);
    int64_t *offset = (int64_t *)scratch((size_t)(G + 1) * 8);
    if (cols != NULL && s->pack == PACK_WINDOWS) {
        int64_t sum = 0;
        for (int32_t g = 0; g < G; g++) sum += cols[g];
        if (sum > width) ld = sum + s->pad;
        if (s->aligned) ld = (ld + 7) / 8 * 8;
    }
    if (ld != width && cols == NULL) t->tensor.ld = ld;
    if (cols != NULL) {
        shape->col_sizes = tegroup_sizes_of(index_array(sizes.dtype, cols, G), sizes.dtype, TEGROUP_SPACE_HOST);
        if (s->pack >= PACK_LD) t->tensor.ld = ld;
    }
    if (gathered) gather_make(s, t, start, capacity, rows, (char)gathered);
    if (!ragged && s->pad > 0) t->tensor.group_stride = group_stride = capacity * ld + (s->aligned ? 32 : 5);
    for (int32_t g = 0; g < G; g++) {
        t->rows[g] = rows[g];
        t->cols[g] = cols != NULL ? cols[g] : width;
        t->ld[g] = cols != NULL && s->pack < PACK_LD ? cols[g] : ld;
        if (!ragged) offset[g] = g * (group_stride != 0 ? group_stride : capacity * ld);
        else if (cols == NULL || s->pack == PACK_LD) offset[g] = start[g] * ld;
        else if (s->pack == PACK_WINDOWS) offset[g] = window + g % 3 * ld;
        else offset[g] = elements += s->pack == PACK_OFFSETS ? 3 : 0;
        if (cols == NULL || s->pack == PACK_LD) continue;
        if (s->pack != PACK_WINDOWS) elements += rows[g] * cols[g];
        else if (rows[g] > 0 && cols[g] > 0 && offset[g] + (rows[g] - 1) * ld + cols[g] > elements) elements = offset[g] + (rows[g] - 1) * ld + cols[g];
        window += cols[g];
    }
    if (!ragged) elements = G == 0 ? 0 : offset[G - 1] + (capacity > 0 ? (capacity - 1) * ld + width : 0);
    else if (gathered) elements = capacity > 0 ? (t->gather.rows - 1) * ld + width : 0;
    else if (cols == NULL || s->pack == PACK_LD) elements = capacity > 0 ? (capacity - 1) * ld + width : 0;
    else elements += 2;
    if (cols != NULL && !list) shape->elements = elements; /* each of a list's buffers holds its group */
    if (cols != NULL && !list && (s->pack == PACK_OFFSETS || s->pack == PACK_WINDOWS)) {
        shape->offsets = (const int64_t *)index_array(TEGROUP_DTYPE_I64, offset, G);
        if (s->pack == PACK_OFFSETS && s->seed % 2 == 1) { /* the groups in the opposite order */
            int64_t at = 1;
            for (int32_t g = G - 1; g >= 0; g--) {
                ((int64_t *)(uintptr_t)shape->offsets)[g] = offset[g] = at;
                at += rows[g] * cols[g] + 3;
            }
            shape->elements = elements = at;
        }
    }
    if (list) {
        void **pointers = (void **)guarded((size_t)G * sizeof(void *));
        for (int32_t g = 0; g < G; g++) {
            pointers[g] = elements_new(dtype, capacity > 0 ? (capacity - 1) * t->ld[g] + t->cols[g] : 0, s->aligned);
            t->at[g] = (unsigned char *)pointers[g];
        }
        t->tensor.pointers = pointers;
        t->tensor.pointers_space = TEGROUP_SPACE_HOST;
    } else {
        t->tensor.data = elements_new(dtype, elements, s->aligned);
        for (int32_t g = 0; g < G; g++) t->at[g] = (unsigned char *)t->tensor.data + (gathered ? 0 : offset[g] * element);
    }
    if (ragged) {
        tegroup_layout layout;
        if (tegroup_snapshot_layout(shape, &layout, &p->error) == TEGROUP_OK) {
            t->snapshot = scratch(layout.total_bytes);
            shape->snapshot = t->snapshot;
        }
    }
}

SUPPORT void grid_fill(const problem *p, grid *t, char role, fill_kind kind, int rows_have_numbers) {
    const spec *s = &p->s;
    if (t->picked != NULL) /* what nobody picks stays poison */
        for (int32_t g = 0; g < s->groups; g++)
            for (int64_t i = t->row0[g]; i < t->row0[g] + t->rows[g]; i++) {
                int64_t row = t->picked[i];
                rng r = row_rng(s, role, 0, row);
                if (row >= 0) fill(&r, kind, t->dtype, (unsigned char *)t->tensor.data + row * t->ld[g] * (int64_t)size_of(t->dtype), 1, t->cols[g], 0);
            }
    for (int32_t g = 0; g < s->groups && t->picked == NULL; g++)
        for (int64_t row = 0; row < t->rows[g]; row++) {
            rng r = row_rng(s, role, g, row + (rows_have_numbers && s->row_first != NULL ? s->row_first[g] : 0));
            fill(&r, kind, t->dtype, t->at[g] + row * t->ld[g] * (int64_t)size_of(t->dtype), 1, t->cols[g], 0);
        }
}

SUPPORT tegroup_scalars scalars_make(problem *p, char role, int kind, void **data) {
    const spec *s = &p->s;
    static const double whole[] = {-2, -1, 1, 2, 3};
    tegroup_scalars scalars;
    memset(&scalars, 0, sizeof scalars);
    *data = NULL;
    if (kind == SCALARS_DEFAULT) return scalars;
    scalars.dtype = s->scalar_dtype;
    tegroup_dtype dtype = s->scalar_dtype != TEGROUP_DTYPE_UNSET ? s->scalar_dtype : TEGROUP_DTYPE_F32;
    int32_t count = kind == SCALARS_EACH ? s->groups : 1;
    scalars.space = TEGROUP_SPACE_HOST;
    scalars.stride = kind == SCALARS_EACH;
    scalars.data = *data = guarded((size_t)count * size_of(dtype));
    for (int32_t g = 0; g < count; g++) {
        rng r = row_rng(s, role, g, 0);
        double x = s->fill_c == FILL_NORMAL && s->fill_a == FILL_NORMAL ? rng_unit(&r) * 4 - 2 : whole[rng_int(&r, 0, 4)];
        if (role == 'B' && rng_chance(&r, 25)) x = 0;
        if (dtype == TEGROUP_DTYPE_F32 || s->compute != TEGROUP_COMPUTE_F64) x = (double)(float)x;
        store(dtype, *data, g, x);
    }
    return scalars;
}
SUPPORT double scalar_of(const tegroup_scalars *scalars, int32_t g, double unset) {
    if (scalars->space == TEGROUP_SPACE_UNSET) return unset;
    return load(scalars->dtype != TEGROUP_DTYPE_UNSET ? scalars->dtype : TEGROUP_DTYPE_F32, scalars->data, scalars->stride * g);
}
SUPPORT double alpha_of(const problem *p, int32_t g) { return scalar_of(&p->desc.alpha, g, 1); }
SUPPORT double beta_of(const problem *p, int32_t g) {
    return p->s.c == C_ACCUMULATE ? 1 : p->s.c == C_NONE ? 0 : scalar_of(&p->desc.beta, g, 0);
}

/* Lay out and fill everything; problem_prepare, problem_plan and problem_run do the rest. */
SUPPORT void problem_make(problem *p, const spec *given) {
    memset(p, 0, sizeof *p);
    p->s = *given;
    spec *s = &p->s;
    if (s->in == TEGROUP_DTYPE_UNSET) s->in = TEGROUP_DTYPE_F32;
    if (s->out == TEGROUP_DTYPE_UNSET) s->out = s->in;
    if (s->weights == TEGROUP_DTYPE_UNSET || s->in != TEGROUP_DTYPE_F32 || s->op == TEGROUP_OP_WGRAD) s->weights = s->in;
    if (s->bias_dtype == TEGROUP_DTYPE_UNSET) s->bias_dtype = s->out;
    if (s->in == TEGROUP_DTYPE_F64) s->compute = TEGROUP_COMPUTE_F64;
    p->mark = guards_mark();
    int32_t G = s->groups;
    int64_t *m = (int64_t *)scratch((size_t)G * 8), *n = (int64_t *)scratch((size_t)G * 8), *one = (int64_t *)scratch((size_t)G * 8);
    int64_t *wstart = (int64_t *)scratch((size_t)G * 8), wrows = 0;
    tegroup_sizes rows = place_rows(p), none, wsizes;
    memset(&none, 0, sizeof none);
    wsizes = none;
    for (int32_t g = 0; g < G; g++) {
        m[g] = group_rows(s, g); n[g] = group_n(s, g); one[g] = 1;
        wstart[g] = wrows;
        wrows += n[g];
    }
    if (s->ng != NULL || s->kg != NULL) {
        const tegroup_dtype index = s->index != TEGROUP_DTYPE_UNSET ? s->index : TEGROUP_DTYPE_I64;
        wsizes = tegroup_sizes_of(index_array(index, n, G), index, TEGROUP_SPACE_HOST);
    } else {
        wrows = s->n;
    }
    int wgrad = s->op == TEGROUP_OP_WGRAD, dgrad = s->op == TEGROUP_OP_DGRAD, bit = s->lists;
    const int64_t *acols = s->op == TEGROUP_OP_FORWARD ? s->kg : s->ng, *dcols = dgrad ? s->kg : s->ng;
    int64_t awidth = s->op == TEGROUP_OP_FORWARD ? s->k : s->n, dwidth = dgrad ? s->k : s->n;
    int64_t capacity = s->m == NULL ? s->rows_each : p->capacity;
    grid_make(p, &p->a, s->in, rows, p->start, capacity, m, acols, awidth, bit & 1, s->gather & 1 ? 'x' : 0);
    if (wgrad) {
        grid_make(p, &p->b, s->in, rows, p->start, capacity, m, s->kg, s->k, bit & 2, s->gather & 2 ? 'y' : 0);
        grid_make(p, &p->d, s->out, wsizes, wstart, wrows, n, s->kg, s->k, bit & 8, 0);
        if (s->c == C_SEPARATE) grid_make(p, &p->c, s->out, wsizes, wstart, wrows, n, s->kg, s->k, bit & 4, 0);
    } else {
        grid_make(p, &p->b, s->weights, wsizes, wstart, wrows, n, s->kg, s->k, bit & 2, 0);
        grid_make(p, &p->d, s->out, rows, p->start, capacity, m, dcols, dwidth, bit & 8, 0);
        if (s->c == C_SEPARATE) grid_make(p, &p->c, s->out, rows, p->start, capacity, m, dcols, dwidth, bit & 4, 0);
    }
    const int of_k = dgrad || s->bias_of_b; /* bias has D's columns, but for a wgrad of a's rows */
    if (s->bias) grid_make(p, &p->bias, s->bias_dtype, none, NULL, 1, one, NULL, of_k ? s->k : s->n, bit & 16, 0);
    for (int32_t g = 0; s->bias && g < G; g++) p->bias.cols[g] = of_k ? group_k(s, g) : group_n(s, g); /* a row is as wide as the widest group */
    if (s->c == C_IN_PLACE) { p->c = p->d; p->c.snapshot = NULL; }

    grid_fill(p, &p->a, 'a', s->fill_a, 1);
    grid_fill(p, &p->b, 'b', s->fill_b, wgrad);
    tegroup_gemm_desc *d = &p->desc;
    d->struct_size = sizeof *d;
    d->op = s->op;
    d->space = TEGROUP_SPACE_HOST;
    d->a = p->a.tensor; d->b = p->b.tensor; d->d = p->d.tensor;
    d->gather_a = p->a.gather; d->gather_b = p->b.gather;
    if (s->c == C_SEPARATE || s->c == C_IN_PLACE) d->c = p->c.tensor;
    if (s->bias) d->bias = p->bias.tensor;
    d->bias_of_b = s->bias_of_b;
    d->alpha = scalars_make(p, 'A', s->alpha, &p->alpha);
    if (s->c != C_ACCUMULATE) d->beta = scalars_make(p, 'B', s->c == C_NONE ? SCALARS_DEFAULT : s->beta, &p->beta);
    d->accumulate = s->c == C_ACCUMULATE;
    d->tail = s->tail;
    d->options.compute = s->compute;
    d->options.threads = s->threads;
    d->options.check_level = s->seed % 4 == 3 ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST; /* what is sound passes either */
    if (s->row_scale_dtype != TEGROUP_DTYPE_UNSET && s->bias) {
        int64_t all = s->m == NULL ? G * s->rows_each : p->capacity;
        p->row_scale = elements_new(s->row_scale_dtype, all, s->aligned);
        for (int32_t g = 0; g < G; g++)
            for (int64_t i = 0; i < m[g]; i++) {
                rng r = row_rng(s, 'r', g, i + (s->row_first != NULL ? s->row_first[g] : 0));
                fill(&r, s->fill_a == FILL_NORMAL ? FILL_NORMAL : FILL_INTEGER, s->row_scale_dtype,
                     (unsigned char *)p->row_scale + (p->start[g] + i) * (int64_t)size_of(s->row_scale_dtype), 1, 1, 0);
                if (s->compute != TEGROUP_COMPUTE_F64) /* what the sums' type can hold */
                    store(s->row_scale_dtype, p->row_scale, p->start[g] + i, (double)(float)load(s->row_scale_dtype, p->row_scale, p->start[g] + i));
            }
        d->row_scale = p->row_scale;
        d->row_scale_dtype = s->row_scale_dtype;
    }
    /* C, and D where it is read, hold numbers; where beta is 0 they stay poison, which is NaN */
    grid *c = s->c == C_SEPARATE ? &p->c : s->c == C_NONE ? NULL : &p->d;
    if (c != NULL) {
        grid_fill(p, c, 'c', s->fill_c, !wgrad);
        for (int32_t g = 0; g < G; g++)
            if (beta_of(p, g) == 0)
                for (int64_t i = 0; i < c->rows[g]; i++)
                    poison(c->at[g] + i * c->ld[g] * (int64_t)size_of(c->dtype), (size_t)c->cols[g] * size_of(c->dtype));
    }
    if (s->bias && (!wgrad || s->c == C_ACCUMULATE)) grid_fill(p, &p->bias, 'e', s->fill_c, 0);
    for (guarded_node *node = guarded_top; node != (guarded_node *)p->mark; node = node->older)
        if (!node->scratch) guarded_remember(node->data);
}

SUPPORT void problem_release(problem *p) { guards_release(p->mark); }

/* Into an operand that is not gathered the rows of one that is, as tegroup_permute puts them, and zeros. */
SUPPORT tegroup_status gather_copy(const grid *from, grid *to, tegroup_error *error) {
    const tegroup_tensor *t = &to->tensor;
    const int64_t ld = t->ld != 0 ? t->ld : t->shape.cols, size = (int64_t)size_of(to->dtype);
    int64_t *slot_of_row = (int64_t *)scratch((size_t)t->shape.rows * 8);
    tegroup_permute_desc desc;
    tegroup_status status;
    if (from->picked == NULL) return TEGROUP_OK; /* filled alike */
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.k = from->gather.slots > 0 ? (int32_t)from->gather.slots : 1;
    desc.tokens = tegroup_matrix_of(from->tensor.data, from->gather.rows, t->shape.cols, to->dtype);
    desc.permuted = tegroup_matrix_of(t->data, t->shape.rows, t->shape.cols, to->dtype);
    desc.tokens.ld = desc.permuted.ld = ld;
    desc.slot_of_row = tegroup_matrix_of(slot_of_row, 1, t->shape.rows, TEGROUP_DTYPE_I64);
    for (int64_t i = 0; i < t->shape.rows; i++) {
        slot_of_row[i] = from->picked[i] < 0 ? -1 : from->gather.slot_of_row[i];
        if (slot_of_row[i] < 0) memset((unsigned char *)t->data + i * ld * size, 0, (size_t)(t->shape.cols * size));
    }
    status = tegroup_permute(&desc, NULL, error);
    guarded_remember(t->data);
    return status;
}

SUPPORT tegroup_status grid_prepare(const grid *t, tegroup_error *error) {
    tegroup_prepare_desc desc;
    if (t->snapshot == NULL) return TEGROUP_OK;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.shape = t->tensor.shape;
    desc.ld = t->tensor.shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET && t->tensor.pointers == NULL ? t->tensor.ld : 0; /* lists need none */
    desc.space = TEGROUP_SPACE_HOST;
    desc.snapshot = t->snapshot;
    desc.snapshot_bytes = guarded_find(t->snapshot)->bytes;
    desc.clamp = t->clamp;
    return tegroup_prepare(&desc, NULL, error);
}
SUPPORT tegroup_status problem_prepare(problem *p) {
    grid *grids[] = {&p->a, &p->b, &p->c, &p->d, &p->bias};
    for (int i = 0; i < 5; i++) {
        tegroup_status status = grid_prepare(grids[i], &p->error);
        if (status != TEGROUP_OK) return status;
    }
    return TEGROUP_OK;
}
SUPPORT tegroup_status problem_plan(problem *p) {
    tegroup_status status = tegroup_plan_make(&p->desc, NULL, &p->plan, &p->error);
    if (status == TEGROUP_OK && p->plan.workspace_bytes > 0) {
        p->desc.options.workspace_bytes = p->plan.workspace_bytes;
        p->desc.options.workspace = scratch(p->desc.options.workspace_bytes);
    }
    return status;
}
/* Plan, prepare and run. A failure is printed. */
SUPPORT tegroup_status problem_run(problem *p) {
    tegroup_status status = problem_plan(p);
    if (status == TEGROUP_OK) status = problem_prepare(p);
    if (status == TEGROUP_OK) status = tegroup_gemm(&p->plan, &p->desc, NULL, &p->error);
    if (status != TEGROUP_OK)
        fprintf(stderr, "status %d: field %s %s, expected %ld, got %ld\n", (int)status, p->error.field, p->error.rule,
                (long)p->error.expected, (long)p->error.got);
    return status;
}
/* Everything as it was before the first run: D and the bias gradient poisoned or filled again. */
SUPPORT void problem_reset(problem *p) {
    for (guarded_node *node = guarded_top; node != (guarded_node *)p->mark; node = node->older)
        if (!node->scratch && node->copy != NULL) memcpy(node->data, node->copy, node->bytes);
}

/* ---- the reference ------------------------------------------------------------------------------------------------
 * Per element the value R and the bound on |D - R|:
 *   (K + 4 + roundings) u |alpha| sum|a||b|  +  2 u |beta C|  +  2 u |scaled bias|  +  u_out |R| (1 + 2^-6)  +  eta
 * with u of the sums' type; |beta C| passes one more addition, hence 3 u, when there is a bias. */
SUPPORT void problem_reference(problem *p) {
    const spec *s = &p->s;
    int32_t G = s->groups;
    int wgrad = s->op == TEGROUP_OP_WGRAD;
    double u = s->compute == TEGROUP_COMPUTE_F64 ? 0x1p-53 : SUPPORT_SUM_ROUNDING;
    const int fast_accum = s->compute == TEGROUP_COMPUTE_FAST_ACCUM && !wgrad && SUPPORT_SUM_SHARE > 0;
    p->want = (double **)scratch((size_t)G * sizeof(double *));
    p->bound = (double **)scratch((size_t)G * sizeof(double *));
    p->long_sum = (unsigned char **)scratch((size_t)G * sizeof(unsigned char *));
    p->want_bias = (double **)scratch((size_t)G * sizeof(double *));
    p->bound_bias = (double **)scratch((size_t)G * sizeof(double *));
    for (int32_t g = 0; g < G; g++) {
        int64_t I = p->d.rows[g], J = p->d.cols[g];
        int64_t K = wgrad ? group_rows(s, g) : s->op == TEGROUP_OP_DGRAD ? group_n(s, g) : group_k(s, g);
        double *x = (double *)malloc((size_t)(I * K + J * K + 1) * sizeof(double)), *y = x + I * K;
        double alpha = alpha_of(p, g), beta = beta_of(p, g);
        p->want[g] = (double *)scratch((size_t)(I * J) * sizeof(double));
        p->bound[g] = (double *)scratch((size_t)(I * J) * sizeof(double));
        p->long_sum[g] = (unsigned char *)scratch((size_t)(I * J));
        for (int64_t i = 0; i < I; i++)
            for (int64_t q = 0; q < K; q++) x[i * K + q] = wgrad ? value_at(&p->a, g, q, i) : value_at(&p->a, g, i, q);
        for (int64_t j = 0; j < J; j++)
            for (int64_t q = 0; q < K; q++) y[j * K + q] = s->op == TEGROUP_OP_FORWARD ? value_at(&p->b, g, j, q) : value_at(&p->b, g, q, j);
        for (int64_t i = 0; i < I; i++)
            for (int64_t j = 0; j < J; j++) {
                long double sum = 0, total;
                double size = 0, bc = 0, e = 0;
                const double narrow = check_dot(x + i * K, y + j * K, K, &size);
                if (s->compute == TEGROUP_COMPUTE_F64) for (int64_t q = 0; q < K; q++) sum += (long double)x[i * K + q] * y[j * K + q];
                else sum = narrow; /* products of F32 values are exact, and 29 bits are to spare */
                total = alpha * sum;
                if (beta != 0) bc = beta * value_at(s->c == C_SEPARATE ? &p->c : &p->d, g, i, j);
                if (beta != 0) total += (long double)beta * value_at(s->c == C_SEPARATE ? &p->c : &p->d, g, i, j);
                if (s->bias && !wgrad) {
                    double scale = p->row_scale != NULL ? load(s->row_scale_dtype, p->row_scale, p->start[g] + i) : 1;
                    e = scale * value_at(&p->bias, g, 0, j);
                    total += (long double)scale * value_at(&p->bias, g, 0, j);
                }
                p->want[g][i * J + j] = (double)total;
                p->bound[g][i * J + j] = check_bound(K + s->roundings, u, fabs(alpha) * size, s->out, (double)total)
                    + (fast_accum ? (double)((K + 31) / 32) * 33 * 0x1p-13 : SUPPORT_SUM_SHARE) * fabs(alpha) * size + (s->bias ? 3 : 2) * u * fabs(bc) + 2 * u * fabs(e);
                if (s->rounds_product) p->bound[g][i * J + j] += unit_roundoff(s->out) * (beta != 0 ? fabs((double)(alpha * sum)) : 0) * (1 + 0x1p-6) + smallest_step(s->out) / 2;
                p->long_sum[g][i * J + j] = K >= 32 && (double)(K + 4 + s->roundings) * u * fabs(alpha) * size >= 0.75 * p->bound[g][i * J + j];
            }
        free(x);
        if (!s->bias || !wgrad) continue;
        int64_t N = p->bias.cols[g], M = group_rows(s, g);
        p->want_bias[g] = (double *)scratch((size_t)N * sizeof(double));
        p->bound_bias[g] = (double *)scratch((size_t)N * sizeof(double));
        for (int64_t j = 0; j < N; j++) {
            double old = s->c == C_ACCUMULATE ? value_at(&p->bias, g, 0, j) : 0, size = 0;
            long double sum = old;
            for (int64_t q = 0; q < M; q++) {
                double scale = p->row_scale != NULL ? load(s->row_scale_dtype, p->row_scale, p->start[g] + q) : 1;
                double term = scale * value_at(s->bias_of_b ? &p->b : &p->a, g, q, j);
                sum += (long double)scale * value_at(s->bias_of_b ? &p->b : &p->a, g, q, j);
                size += fabs(term);
            }
            p->want_bias[g][j] = (double)sum;
            p->bound_bias[g][j] = check_bound(M + s->roundings, u, size, s->bias_dtype, (double)sum) + 2 * u * fabs(old);
        }
    }
}

/* What a comparison found. worst: largest error / bound (infinite for NaN). The gate: of long sums, at most one in 1,000
 * may err by a quarter of the bound, because at large K the bound alone lets a lost product pass. (In short sums it does
 * not, and a few roundings can add up to that much.) */
typedef struct verdict { double worst; int64_t count, gated, above, inexact; } verdict;

SUPPORT int gate_holds(verdict v) { return v.above * 1000 <= v.gated; }

SUPPORT void compare(verdict *v, double got, double want, double bound, int gated) {
    const double ratio = check_ratio(got, want, bound);
    if (ratio > v->worst) v->worst = ratio;
    v->count++;
    v->gated += gated;
    v->above += gated && ratio >= 0.25;
    v->inexact += !(got == want);
}
SUPPORT verdict problem_compare(const problem *p) {
    verdict v = {0, 0, 0, 0, 0};
    for (int32_t g = 0; g < p->s.groups; g++) {
        if (p->s.op == TEGROUP_OP_WGRAD && group_skipped(&p->s, g)) continue;
        for (int64_t i = 0; i < p->d.rows[g]; i++)
            for (int64_t j = 0; j < p->d.cols[g]; j++)
                {
                int64_t e = i * p->d.cols[g] + j;
                compare(&v, value_at(&p->d, g, i, j), p->want[g][e], p->bound[g][e], p->long_sum[g][e]);
            }
    }
    return v;
}
SUPPORT verdict problem_compare_bias(const problem *p) {
    verdict v = {0, 0, 0, 0, 0};
    for (int32_t g = 0; g < p->s.groups && p->s.bias && p->s.op == TEGROUP_OP_WGRAD; g++)
        for (int64_t j = 0; j < p->bias.cols[g] && !group_skipped(&p->s, g); j++)
            compare(&v, value_at(&p->bias, g, 0, j), p->want_bias[g][j], p->bound_bias[g][j], 0);
    return v;
}

SUPPORT void grid_forgive(const grid *t, const spec *s) { /* what a run may write is not a disturbance */
    guarded_node *node = NULL;
    for (int32_t g = 0; g < s->groups; g++) {
        if (g == 0 || t->tensor.pointers != NULL) node = guarded_find(t->tensor.pointers != NULL ? (const void *)t->at[g] : t->tensor.data);
        if (s->op == TEGROUP_OP_WGRAD && group_skipped(s, g)) continue;
        for (int64_t i = 0; i < t->rows[g]; i++) {
            ptrdiff_t at = t->at[g] + i * t->ld[g] * (int64_t)size_of(t->dtype) - node->data;
            memcpy(node->copy + at, node->data + at, (size_t)t->cols[g] * size_of(t->dtype));
        }
    }
}
/* Bytes changed outside the elements that a run owns: inputs, padding, gaps, tails, skipped groups, guards.
 * Call once after a run that is not repeated: the remembered D becomes the one written. */
SUPPORT int64_t problem_disturbed(problem *p) {
    int64_t changed = 0;
    grid_forgive(&p->d, &p->s);
    if (p->s.bias && p->s.op == TEGROUP_OP_WGRAD) grid_forgive(&p->bias, &p->s);
    for (guarded_node *node = guarded_top; node != (guarded_node *)p->mark; node = node->older)
        if (!node->scratch && node->copy != NULL) changed += guarded_changed(node->data);
    return changed + guards_changed();
}

/* Elements of D's rows that are no group's and not what `tail` asks for. Those that are count as D's, for problem_disturbed. */
SUPPORT int64_t problem_tail_wrong(problem *p) {
    const tegroup_tensor *d = &p->desc.d;
    const int64_t ld = d->ld != 0 ? d->ld : d->shape.cols;
    const size_t element = size_of(p->d.dtype);
    guarded_node *node = p->desc.tail == TEGROUP_TAIL_KEEP ? NULL : guarded_find(p->d.tensor.data);
    int64_t wrong = 0;
    for (int64_t row = 0; row < d->shape.rows && node != NULL; row++) {
        int owned = 0;
        for (int32_t g = 0; g < p->s.groups; g++) owned |= row >= p->start[g] && row < p->start[g] + p->d.rows[g];
        for (int64_t col = 0; col < d->shape.cols && !owned; col++) {
            const size_t at = (size_t)(row * ld + col) * element;
            const double x = load(p->d.dtype, node->data, row * ld + col);
            wrong += p->desc.tail == TEGROUP_TAIL_ZERO ? x != 0 || signbit(x) : !isnan(x);
            memcpy(node->copy + at, node->data + at, element);
        }
    }
    return wrong;
}

/* ---- random specs ---------------------------------------------------------------------------------------------------- */

/* Row counts around a mean: empty groups, single rows and one large group among them. */
SUPPORT int64_t *random_rows(rng *r, int32_t groups, int64_t most, int skips) {
    int64_t *m = (int64_t *)scratch((size_t)groups * 8 + 8);
    for (int32_t g = 0; g < groups; g++) {
        int64_t kind = rng_int(r, 0, 9);
        m[g] = kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? most : kind == 3 && skips ? -1 : rng_int(r, 0, most);
    }
    return m;
}
SUPPORT int64_t *random_widths(rng *r, int32_t groups, int64_t most) {
    int64_t *w = (int64_t *)scratch((size_t)groups * 8 + 8);
    for (int32_t g = 0; g < groups; g++) w[g] = most == 0 || rng_chance(r, 10) ? 0 : rng_chance(r, 20) ? most : rng_int(r, 1, most);
    return w;
}

/* A random honest problem of modest size. Arrays belong to the guarded list: take a mark before. */
SUPPORT spec random_spec(rng *r, tegroup_op op, int64_t most_rows, int64_t most_width) {
    static const tegroup_dtype ins[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F64};
    static const int64_t alignments[] = {2, 4, 7, 16, 32};
    spec s;
    memset(&s, 0, sizeof s);
    s.op = op;
    s.seed = rng_next(r);
    s.groups = (int32_t)rng_int(r, 0, 6);
    s.n = rng_int(r, 1, most_width);
    s.k = rng_int(r, 1, most_width);
    s.in = ins[rng_int(r, 0, 3)];
    s.out = s.in == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : s.in;
    if (s.in == TEGROUP_DTYPE_F64 || rng_chance(r, 15)) s.compute = TEGROUP_COMPUTE_F64;
    else if (rng_chance(r, 20)) s.compute = s.seed % 4 ? TEGROUP_COMPUTE_F32_FAST : TEGROUP_COMPUTE_FAST_ACCUM;
    s.pad = rng_chance(r, 50) ? rng_int(r, 1, 9) : 0;
    if (rng_chance(r, 20)) {
        s.rows_each = rng_int(r, 0, most_rows);
    } else {
        s.encoding = (tegroup_encoding)rng_int(r, TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS);
        s.index = rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
        s.m = random_rows(r, s.groups, most_rows, s.encoding == TEGROUP_ENCODING_COUNTS);
        s.place = s.encoding == TEGROUP_ENCODING_COUNTS ? (place_kind)rng_int(r, 0, 3)
                : s.encoding == TEGROUP_ENCODING_ENDS ? (place_kind)rng_int(r, 0, 1) : PLACE_DENSE;
        s.alignment = alignments[rng_int(r, 0, 4)];
        s.tail_rows = rng_int(r, 0, 5);
        if (rng_chance(r, 30)) {
            int which = (int)rng_int(r, 1, 3);
            if (which & 1) s.ng = random_widths(r, s.groups, s.n);
            if (which & 2) s.kg = random_widths(r, s.groups, s.k);
            s.pack = (pack_kind)rng_int(r, 0, 3);
        }
    }
    s.threads = rng_chance(r, 10) ? (int32_t)rng_int(r, 0, 4) : 1; /* few: waking threads takes longer than these products */
    s.alpha = (int)rng_int(r, 0, 2);
    s.c = (c_kind)rng_int(r, 0, 3);
    s.beta = (int)rng_int(r, 0, 2);
    s.scalar_dtype = rng_chance(r, 30) ? TEGROUP_DTYPE_F64 : rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_UNSET;
    s.bias = rng_chance(r, 40);
    s.bias_of_b = s.bias && op == TEGROUP_OP_WGRAD && rng_chance(r, 50);
    if (s.bias && s.out != TEGROUP_DTYPE_F64 && rng_chance(r, 50)) s.bias_dtype = TEGROUP_DTYPE_F32;
    if (s.bias && rng_chance(r, 50)) s.row_scale_dtype = rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_F64;
    s.lists = rng_chance(r, 25) ? (int32_t)rng_int(r, 1, 31) : 0;
    if (s.row_scale_dtype != TEGROUP_DTYPE_UNSET) s.lists &= s.bias_of_b ? ~2 : ~1; /* rows of a list have no common numbering */
    if (s.c == C_IN_PLACE) s.lists = (s.lists & ~4) | ((s.lists & 8) >> 1);
    if (rng_chance(r, 50)) s.weights = ins[rng_int(r, 1, 2)];
    return s;
}

/* As many per cent of the problems that can be get an operand, or in a wgrad both, whose rows an index picks. */
SUPPORT void random_gather(rng *r, spec *s, int percent) {
    const int64_t *acols = s->op == TEGROUP_OP_FORWARD ? s->kg : s->ng;
    int32_t can = s->m == NULL ? 0 : (acols == NULL && !(s->lists & 1) ? 1 : 0) | (s->op == TEGROUP_OP_WGRAD && s->kg == NULL && !(s->lists & 2) ? 2 : 0);
    s->gather = rng_chance(r, percent) ? can & (int32_t)rng_int(r, 1, 3) : 0;
}

/* Widths rounded up to multiples of eight. */
SUPPORT int64_t *whole_widths(const int64_t *widths, int32_t groups) {
    int64_t *w = (int64_t *)scratch((size_t)groups * 8 + 8);
    for (int32_t g = 0; g < groups; g++) w[g] = (widths[g] + 7) / 8 * 8;
    return w;
}

/* The same with 16-bit operands and, where aligned is set, every row at a multiple of 16 bytes: what cuBLASLt's
 * grouped matmul takes. No bias, no tail to fill. */
SUPPORT spec random_half_spec(rng *r, tegroup_op op, int64_t most_rows, int64_t most_width, int aligned) {
    spec s = random_spec(r, op, most_rows, most_width);
    s.in = rng_chance(r, 50) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16;
    s.out = rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : s.in;
    s.weights = TEGROUP_DTYPE_UNSET;
    s.compute = TEGROUP_COMPUTE_F32;
    s.bias = s.bias_of_b = 0;
    s.row_scale_dtype = TEGROUP_DTYPE_UNSET;
    s.lists &= 15;
    s.aligned = aligned;
    if (!aligned) return s;
    s.n = (s.n + 7) / 8 * 8;
    s.k = (s.k + 7) / 8 * 8;
    s.pad = s.pad / 4 * 8;
    if (s.ng != NULL || s.kg != NULL) s.pack = PACK_LD;
    if (s.ng != NULL) s.ng = whole_widths(s.ng, s.groups);
    if (s.kg != NULL) s.kg = whole_widths(s.kg, s.groups);
    if (s.pack == PACK_LD && s.pad == 0) s.pad = 8; /* without padding, rows are as wide as each group */
    return s;
}

#endif
