/* ---- Set-up of a grouped cuBLASLt matmul ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/snapshot_checks.h"
#include "core/problem.h"
#include "core/backend_table.h"
#include "core/product.h"
#include "core/quantised.h"

/* The arrays that a grouped cuBLASLt matmul reads, in order, with [groups] entries each: of 8 bytes, but floats in the
 * last two. cuBLASLt is column-major and computes the transpose of D, so its A is the descriptor's b and its B the
 * descriptor's a. */
typedef enum tegroup_impl_setup_item {
    /* addresses of the matrices */
    TEGROUP_IMPL_SETUP_A,
    TEGROUP_IMPL_SETUP_B,
    TEGROUP_IMPL_SETUP_C,
    TEGROUP_IMPL_SETUP_D,
    /* addresses of each group's scalars and scales */
    TEGROUP_IMPL_SETUP_ALPHA,
    TEGROUP_IMPL_SETUP_BETA,
    TEGROUP_IMPL_SETUP_A_SCALE,
    TEGROUP_IMPL_SETUP_B_SCALE,
    /* extents as int64, column-major; C has D's rows and columns */
    TEGROUP_IMPL_SETUP_A_ROWS,
    TEGROUP_IMPL_SETUP_A_COLS,
    TEGROUP_IMPL_SETUP_A_LD,
    TEGROUP_IMPL_SETUP_B_ROWS,
    TEGROUP_IMPL_SETUP_B_COLS,
    TEGROUP_IMPL_SETUP_B_LD,
    TEGROUP_IMPL_SETUP_C_LD,
    TEGROUP_IMPL_SETUP_D_ROWS,
    TEGROUP_IMPL_SETUP_D_COLS,
    TEGROUP_IMPL_SETUP_D_LD,
    /* the scalars themselves, as floats */
    TEGROUP_IMPL_SETUP_ALPHA_VALUE,
    TEGROUP_IMPL_SETUP_BETA_VALUE,
    TEGROUP_IMPL_SETUP_COUNT
} tegroup_impl_setup_item;

/* What becomes of a group. Row-major D = A' B' is column-major D^T = B'^T A'^T, and leading dimensions stay the same.
 * Some groups are hidden from cuBLASLt, which is told that they have no columns of D: groups that are skipped, groups
 * whose result D holds already, empty sums unless cuBLASLt is known to write their zeros, and groups that cuBLASLt
 * would read or write wrongly. The last are those whose addresses or rows of D are not whole multiples of 16 bytes,
 * unless the caller ignores the quirk that says so. They become NaN, or beta * C if the sum is empty. */
typedef enum tegroup_impl_alone {
    TEGROUP_IMPL_ALONE_NOTHING, /* cuBLASLt writes it, or there is nothing to write */
    TEGROUP_IMPL_ALONE_EMPTY,   /* the set-up kernel writes beta * C */
    TEGROUP_IMPL_ALONE_NAN      /* the set-up kernel writes NaN: not whole multiples of 16 bytes */
} tegroup_impl_alone;

/* One group's D and C, row-major. */
typedef struct tegroup_impl_result {
    int64_t m, n, ldc, ldd;
    int64_t c, d; /* addresses */
} tegroup_impl_result;

typedef struct tegroup_impl_setup {
    int64_t entry[TEGROUP_IMPL_SETUP_ALPHA_VALUE]; /* of every array of 8-byte entries */
    float alpha, beta;
    tegroup_impl_alone alone;
    tegroup_impl_result result;
} tegroup_impl_setup;

/* Where the arrays are, each at a multiple of TEGROUP_ALIGNMENT: those of 8-byte entries at equal distances, then the
 * two of floats. */
typedef struct tegroup_impl_setup_items {
    char *base;
    uint32_t pitch, last; /* bytes: from one array to the next, and to the last */
} tegroup_impl_setup_items;

TEGROUP_IMPL_STATIC tegroup_impl_setup_items tegroup_impl_setup_items_of(int32_t groups, void *base) {
    tegroup_impl_setup_items items;
    items.base = (char *)base;
    items.pitch = (uint32_t)tegroup_impl_align(8 * (int64_t)groups, TEGROUP_ALIGNMENT);
    items.last = TEGROUP_IMPL_SETUP_ALPHA_VALUE * items.pitch
                 + (uint32_t)tegroup_impl_align(4 * (int64_t)groups, TEGROUP_ALIGNMENT);
    return items;
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_setup_bytes(int32_t groups) {
    return (int64_t)tegroup_impl_setup_items_of(groups, NULL).last
           + tegroup_impl_align(4 * (int64_t)groups, TEGROUP_ALIGNMENT);
}

TEGROUP_IMPL_HD char *tegroup_impl_setup_at(const tegroup_impl_setup_items *items, int32_t item) {
    return items->base + (item < TEGROUP_IMPL_SETUP_COUNT - 1 ? (uint32_t)item * items->pitch : items->last);
}

/* Whether no product of this problem has terms, whatever its groups' sizes. cuBLASLt is not called then. */
TEGROUP_IMPL_HD int tegroup_impl_termless(const tegroup_gemm_desc *desc) {
    return desc->a.shape.rows == 0 || desc->a.shape.cols == 0 || desc->d.shape.cols == 0;
}

/* A plan without rows has no algorithm, and cannot serve a call that has some. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_terms(int has_algorithm, const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_RULE(has_algorithm || desc->a.shape.groups == 0 || tegroup_impl_termless(desc), ERROR_PLAN,
                      TEGROUP_IMPL_OPERAND_PATH(A, ROWS), "must be 0, as planned: cuBLASLt was asked for no algorithm",
                      0, desc->a.shape.rows);
    return TEGROUP_OK;
}

/* What a descriptor says, as far as it is the same for every group, computed on the host. The set-up kernel runs for a
 * few microseconds, in which its instructions, parameters and data come from cold memory, so it has few of each. An
 * operand: */
typedef struct tegroup_impl_setup_operand {
    const int64_t *rows_at, *begin_at; /* arrays of a snapshot, begin_at in units; not read unless ragged */
    const int64_t *cols_at;            /* an array of a snapshot; NULL: every group has `cols` */
    void *const *pointers;             /* NULL: one buffer, `data` */
    char *data;
    int64_t unit, rows, cols; /* unit: in bytes; group g begins g units on if not ragged */
    int64_t ld;               /* 0: packed, each group by its own width; else at least 1 */
    int32_t ragged;
    int32_t along_k; /* what a product sums over is contiguous */
} tegroup_impl_setup_operand;

typedef struct tegroup_impl_setup_scalar {
    const void *at; /* NULL: value */
    int32_t stride, is_f64;
    float value;
} tegroup_impl_setup_scalar;

typedef struct tegroup_impl_setup_call {
    tegroup_op op;
    int32_t groups, termless;
    int32_t fit_count;  /* of fits; one snapshot often serves all operands */
    int32_t separate_c; /* 0: C is D, or is absent and beta is 0 */
    /* Masks of bits that must be 0 for cuBLASLt in an address and in the bytes of a row of D: 15, or 0 if the quirk
     * that says so is ignored. */
    int64_t starts, ends;
    int32_t usual; /* 1: no separate C, no columns or buffers of groups' own, no scalars in memory */
    tegroup_dtype d_dtype;
    int32_t d_bytes; /* of an element */
    tegroup_impl_setup_items items;
    tegroup_impl_setup_scalar alpha, beta;
    tegroup_impl_setup_operand a, b, d, c;
    tegroup_impl_fit fits[4]; /* the snapshots that are read, each once */
} tegroup_impl_setup_call;

TEGROUP_IMPL_STATIC tegroup_impl_setup_operand tegroup_impl_setup_operand_of(const tegroup_tensor *t,
                                                                             const tegroup_snapshot_view *view) {
    tegroup_impl_setup_operand o;
    memset(&o, 0, sizeof o);
    o.ragged = view->rows != NULL;
    o.rows_at = view->rows;
    o.begin_at = view->offset ? view->offset : view->start;
    o.cols_at = view->cols;
    o.rows = t->shape.rows;
    o.cols = t->shape.cols;
    o.ld = t->ld > 0 ? t->ld : view->cols ? 0 : o.cols;
    o.unit = !o.ragged ? tegroup_impl_group_stride(t) : view->offset ? 1 : o.ld;
    o.unit = tegroup_impl_mul(o.unit, tegroup_impl_bits(t->dtype)) / 8;
    if (!view->cols) o.ld = tegroup_impl_max(1, o.ld);
    o.data = (char *)t->data;
    if (!tegroup_impl_listed(t)) return o;
    o.pointers = t->pointers;
    o.unit = 0;
    return o;
}

TEGROUP_IMPL_STATIC tegroup_impl_setup_scalar tegroup_impl_setup_scalar_of(const tegroup_scalars *s, float otherwise) {
    tegroup_impl_setup_scalar made;
    made.at = s->space != TEGROUP_SPACE_UNSET ? s->data : NULL;
    made.stride = s->stride;
    made.is_f64 = s->dtype == TEGROUP_DTYPE_F64;
    made.value = otherwise;
    return made;
}

/* Adds a tensor's snapshot to the fits unless it is there. */
TEGROUP_IMPL_STATIC void tegroup_impl_setup_fit(const tegroup_tensor *t, tegroup_impl_setup_call *call) {
    const tegroup_impl_fit fit = tegroup_impl_fit_of(t);
    int32_t i;
    if (!fit.header) return;
    for (i = 0; i < call->fit_count; i++)
        if (memcmp(&call->fits[i], &fit, sizeof fit) == 0) return;
    call->fits[call->fit_count++] = fit;
}

/* Whether all snapshots are what tegroup_prepare wrote; if not, every group is skipped. */
TEGROUP_IMPL_HD int tegroup_impl_setup_prepared(const tegroup_impl_setup_call *call) {
    int32_t i;
    for (i = 0; i < call->fit_count; i++)
        if (!tegroup_impl_fits(&call->fits[i])) return 0;
    return 1;
}

/* Do the elements that a product sums over follow one another in what it reads of an operand? */
TEGROUP_IMPL_STATIC int tegroup_impl_setup_along_k(const tegroup_gemm_desc *desc, tegroup_impl_operand operand) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    return !tegroup_impl_sums_rows(desc->op, operand)
           || tegroup_impl_transposed(t, tegroup_impl_reads_columnwise(desc, operand));
}

/* alpha and beta are the values of scalars that the descriptor leaves out; quantised operands are as they are read.
 * items: addresses only, nothing is read there. */
TEGROUP_IMPL_STATIC tegroup_impl_setup_call tegroup_impl_setup_call_of(const tegroup_gemm_desc *desc,
                                                                       const tegroup_snapshot_view views[4],
                                                                       float alpha, float beta,
                                                                       tegroup_impl_setup_items items) {
    tegroup_impl_setup_call call;
    memset(&call, 0, sizeof call);
    call.op = desc->op;
    call.groups = desc->d.shape.groups;
    call.termless = tegroup_impl_termless(desc);
    call.separate_c = !desc->accumulate && desc->c.dtype != TEGROUP_DTYPE_UNSET;
    call.d_dtype = desc->d.dtype;
    call.d_bytes = tegroup_impl_bits(desc->d.dtype) / 8;
    call.starts = tegroup_impl_quirk_ignored(desc, TEGROUP_QUIRK_MISALIGNED_LD) ? 0 : 15;
    call.ends = tegroup_impl_quirk_ignored(desc, TEGROUP_QUIRK_MISALIGNED_COLS) ? 0 : 15;
    call.items = items;
    call.alpha = tegroup_impl_setup_scalar_of(&desc->alpha, alpha);
    call.beta.value = (float)desc->accumulate;
    call.a = tegroup_impl_setup_operand_of(&desc->a, &views[TEGROUP_IMPL_A]);
    call.b = tegroup_impl_setup_operand_of(&desc->b, &views[TEGROUP_IMPL_B]);
    call.d = tegroup_impl_setup_operand_of(&desc->d, &views[TEGROUP_IMPL_D]);
    call.a.along_k = tegroup_impl_setup_along_k(desc, TEGROUP_IMPL_A);
    call.b.along_k = tegroup_impl_setup_along_k(desc, TEGROUP_IMPL_B);
    call.usual = !call.separate_c && !call.alpha.at && !call.a.cols_at && !call.b.cols_at && !call.d.cols_at
                 && !call.a.pointers && !call.b.pointers && !call.d.pointers;
    tegroup_impl_setup_fit(&desc->a, &call);
    tegroup_impl_setup_fit(&desc->b, &call);
    tegroup_impl_setup_fit(&desc->d, &call);
    if (!call.separate_c) return call;
    tegroup_impl_setup_fit(&desc->c, &call);
    call.beta = tegroup_impl_setup_scalar_of(&desc->beta, beta);
    call.c = tegroup_impl_setup_operand_of(&desc->c, &views[TEGROUP_IMPL_C]);
    return call;
}

/* A group's part of an operand. */
typedef struct tegroup_impl_setup_part {
    int64_t rows, cols, begin, base, ld;
} tegroup_impl_setup_part;

/* A group's part of every operand. */
typedef struct tegroup_impl_setup_parts {
    tegroup_impl_setup_part a, b, c, d;
    int64_t scales[2];  /* addresses of those of a and b; 0: not quantised     */
    int32_t odd_scales; /* 1: cuBLASLt cannot take one of these addresses      */
} tegroup_impl_setup_parts;

/* list[g] if there, else `otherwise`: one predicated load, as the compiler makes some loads wait for others. */
TEGROUP_IMPL_HD int64_t tegroup_impl_setup_load(int32_t there, const int64_t *list, int32_t g, int64_t otherwise) {
#if defined(__CUDA_ARCH__)
    asm volatile("{.reg .pred p;\nsetp.ne.s32 p, %1, 0;\n@p ld.global.s64 %0, [%2];}"
                 : "+l"(otherwise)
                 : "r"(there), "l"(list + g));
    return otherwise;
#else
    return there ? list[g] : otherwise;
#endif
}

/* Reads what the usual case needs of a group. If not prepared, the group is skipped and nothing of the snapshots is
 * read. */
TEGROUP_IMPL_HD tegroup_impl_setup_part tegroup_impl_setup_read(const tegroup_impl_setup_operand *o, int prepared,
                                                                int32_t g) {
    tegroup_impl_setup_part part;
    part.rows = tegroup_impl_setup_load(o->ragged && prepared, o->rows_at, g, prepared ? o->rows : -1);
    part.begin = tegroup_impl_setup_load(o->ragged && prepared, o->begin_at, g, o->ragged ? 0 : g);
    part.cols = o->cols;
    part.base = (int64_t)(uintptr_t)o->data;
    part.ld = o->ld;
    return part;
}

/* Reads what else the group has of its own if the case is not the usual one. */
TEGROUP_IMPL_HD void tegroup_impl_setup_read_more(const tegroup_impl_setup_operand *o, int prepared, int32_t g,
                                                  tegroup_impl_setup_part *part) {
    if (o->cols_at && prepared) part->cols = o->cols_at[g];
    if (o->pointers) part->base = (int64_t)(uintptr_t)o->pointers[g];
    if (o->ld == 0) part->ld = tegroup_impl_max(1, part->cols);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_setup_address(const tegroup_impl_setup_operand *o,
                                                   const tegroup_impl_setup_part *part) {
    return part->base + part->begin * o->unit;
}

TEGROUP_IMPL_HD float tegroup_impl_setup_number(const tegroup_impl_setup_scalar *s, int32_t g) {
    const int32_t i = s->stride ? g : 0;
    if (!s->at) return s->value;
    return s->is_f64 ? (float)((const double *)s->at)[i] : ((const float *)s->at)[i];
}

/* An address for cuBLASLt. One that it could not take is replaced; such a group has no columns, so it is not
 * accessed. */
TEGROUP_IMPL_HD int64_t tegroup_impl_setup_safe(int64_t address, int64_t starts, int64_t otherwise) {
    return address == 0 || (address & starts) ? otherwise : address;
}

/* Reads group g's parts of plain operands, and its scalars. usual: call->usual, or 0. */
TEGROUP_IMPL_HD void tegroup_impl_setup_read_group(const tegroup_impl_setup_call *call, int usual, int prepared,
                                                   int32_t g, tegroup_impl_setup_parts *parts, tegroup_impl_setup *s) {
    parts->a = tegroup_impl_setup_read(&call->a, prepared, g);
    parts->b = tegroup_impl_setup_read(&call->b, prepared, g);
    parts->d = tegroup_impl_setup_read(&call->d, prepared, g);
    parts->scales[0] = parts->scales[1] = parts->odd_scales = 0;
    s->alpha = call->alpha.value;
    s->beta = call->beta.value;
    if (!usual) {
        s->alpha = tegroup_impl_setup_number(&call->alpha, g);
        s->beta = tegroup_impl_setup_number(&call->beta, g);
        tegroup_impl_setup_read_more(&call->a, prepared, g, &parts->a);
        tegroup_impl_setup_read_more(&call->b, prepared, g, &parts->b);
        tegroup_impl_setup_read_more(&call->d, prepared, g, &parts->d);
    }
    parts->c = parts->d;
    if (!usual && call->separate_c) {
        parts->c = tegroup_impl_setup_read(&call->c, prepared, g);
        tegroup_impl_setup_read_more(&call->c, prepared, g, &parts->c);
    }
}

/* Decides what becomes of a group of these parts, and fills in its entries. */
TEGROUP_IMPL_HD void tegroup_impl_setup_entries(const tegroup_impl_setup_call *call, int usual,
                                                const tegroup_impl_setup_parts *parts, int32_t g,
                                                tegroup_impl_setup *s) {
    const int wgrad = call->op == TEGROUP_OP_WGRAD, has_c = !usual && call->separate_c;
    const tegroup_impl_setup_part *a = &parts->a, *b = &parts->b, *c = &parts->c, *d = &parts->d;
    int64_t at_a = tegroup_impl_setup_address(&call->a, a), at_b = tegroup_impl_setup_address(&call->b, b),
            at_d = tegroup_impl_setup_address(&call->d, d),
            at_c = has_c ? tegroup_impl_setup_address(&call->c, c) : at_d, a_scale = parts->scales[0],
            b_scale = parts->scales[1];
    tegroup_impl_meeting size =
        tegroup_impl_meet(call->op, tegroup_impl_sides_of(a->rows, a->cols), tegroup_impl_sides_of(b->rows, b->cols),
                          tegroup_impl_sides_of(d->rows, d->cols));
    int64_t m, n, k;
    int narrow; /* cuBLASLt's stores would reach past D's columns */
    if (has_c) tegroup_impl_meet_c(&size, tegroup_impl_sides_of(c->rows, c->cols));
    m = tegroup_impl_max(0, size.m);
    n = tegroup_impl_max(0, size.n);
    k = tegroup_impl_max(0, size.k);
    s->result.m = m;
    s->result.n = n;
    s->result.ldc = c->ld;
    s->result.ldd = d->ld;
    s->result.c = at_c;
    s->result.d = at_d;
    s->alone = TEGROUP_IMPL_ALONE_NOTHING;
    narrow = (n * call->d_bytes & call->ends) != 0;
    if (a->rows < 0 || b->rows < 0 || d->rows < 0 || n == 0) m = 0;
    if (k == 0 || narrow || ((at_a | at_b | at_c | at_d) & call->starts) || !at_a || !at_b || !at_c || !at_d
        || parts->odd_scales) {
        const int64_t spare = (int64_t)(uintptr_t)tegroup_impl_setup_at(&call->items, TEGROUP_IMPL_SETUP_A);
        if (k == 0 && s->beta == 1 && at_c == at_d) m = 0; /* D is its own C, and nothing is added to it */
        if (m > 0 && k == 0) {
            /* cuBLASLt writes a plain wgrad's zeros, as 0 * alpha, which asks for a finite alpha; an empty group's
             * scales may be anything */
            int finite = (tegroup_impl_bits_of_f32(s->alpha) & 0x7f800000u) != 0x7f800000u;
            if (!wgrad || a_scale || parts->odd_scales || s->beta != 0 || !finite || narrow
                || ((at_c | at_d) & call->starts) || call->termless)
                s->alone = TEGROUP_IMPL_ALONE_EMPTY;
        }
        if (m > 0 && s->alone == TEGROUP_IMPL_ALONE_NOTHING
            && (narrow || (k > 0 && (((at_a | at_b) & call->starts) || parts->odd_scales))
                || ((at_c | at_d) & call->starts)))
            s->alone = TEGROUP_IMPL_ALONE_NAN;
        if (s->alone != TEGROUP_IMPL_ALONE_NOTHING) m = 0;
        at_a = tegroup_impl_setup_safe(at_a, call->starts, spare);
        at_b = tegroup_impl_setup_safe(at_b, call->starts, spare);
        at_c = tegroup_impl_setup_safe(at_c, call->starts, spare);
        at_d = tegroup_impl_setup_safe(at_d, call->starts, spare);
        if (parts->odd_scales) a_scale = b_scale = spare;
    }
    s->entry[TEGROUP_IMPL_SETUP_A] = at_b;
    s->entry[TEGROUP_IMPL_SETUP_B] = at_a;
    s->entry[TEGROUP_IMPL_SETUP_C] = at_c;
    s->entry[TEGROUP_IMPL_SETUP_D] = at_d;
    s->entry[TEGROUP_IMPL_SETUP_ALPHA] =
        (int64_t)(uintptr_t)tegroup_impl_setup_at(&call->items, TEGROUP_IMPL_SETUP_ALPHA_VALUE) + 4 * (int64_t)g;
    s->entry[TEGROUP_IMPL_SETUP_BETA] =
        (int64_t)(uintptr_t)tegroup_impl_setup_at(&call->items, TEGROUP_IMPL_SETUP_BETA_VALUE) + 4 * (int64_t)g;
    s->entry[TEGROUP_IMPL_SETUP_A_SCALE] = b_scale;
    s->entry[TEGROUP_IMPL_SETUP_B_SCALE] = a_scale;
    s->entry[TEGROUP_IMPL_SETUP_A_ROWS] = call->b.along_k ? k : n;
    s->entry[TEGROUP_IMPL_SETUP_A_COLS] = call->b.along_k ? n : k;
    s->entry[TEGROUP_IMPL_SETUP_B_ROWS] = call->a.along_k ? k : m;
    s->entry[TEGROUP_IMPL_SETUP_B_COLS] = call->a.along_k ? m : k;
    s->entry[TEGROUP_IMPL_SETUP_D_ROWS] = n;
    s->entry[TEGROUP_IMPL_SETUP_D_COLS] = m;
    s->entry[TEGROUP_IMPL_SETUP_A_LD] = b->ld;
    s->entry[TEGROUP_IMPL_SETUP_B_LD] = a->ld;
    s->entry[TEGROUP_IMPL_SETUP_C_LD] = c->ld;
    s->entry[TEGROUP_IMPL_SETUP_D_LD] = d->ld;
}

/* Fills in the entries of group g of plain operands. usual: call->usual, or 0. */
TEGROUP_IMPL_HD void tegroup_impl_setup_group(const tegroup_impl_setup_call *call, int usual, int32_t g,
                                              tegroup_impl_setup *s) {
    tegroup_impl_setup_parts parts;
    tegroup_impl_setup_read_group(call, usual, tegroup_impl_setup_prepared(call), g, &parts, s);
    tegroup_impl_setup_entries(call, usual, &parts, g, s);
}

TEGROUP_IMPL_HD void tegroup_impl_setup_store(const tegroup_impl_setup *s, const tegroup_impl_setup_items *items,
                                              int32_t g) {
    char *at = tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_A) + 8 * (int64_t)g;
    int32_t i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < TEGROUP_IMPL_SETUP_ALPHA_VALUE; i++, at += items->pitch) *(int64_t *)(void *)at = s->entry[i];
    ((float *)(void *)tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_ALPHA_VALUE))[g] = s->alpha;
    ((float *)(void *)tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_BETA_VALUE))[g] = s->beta;
}

/* The layouts of cuBLASLt's workspaces, which the host knows without the library. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_cublas_bytes(const tegroup_plan *plan) {
    return plan->cublas_workspace_bytes > (size_t)PTRDIFF_MAX ? INT64_MAX : (int64_t)plan->cublas_workspace_bytes;
}

TEGROUP_IMPL_STATIC void tegroup_impl_lt_grouped_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    const int64_t cublas = tegroup_impl_cublas_bytes(plan);
    tegroup_impl_layout_add(layout, "addresses and extents of each group's matrices",
                            tegroup_impl_setup_bytes(plan->problem.groups));
    tegroup_impl_layout_add(layout, plan->cublas_parts > 1 ? "cuBLASLt, forward" : "cuBLASLt", cublas);
    if (plan->cublas_parts > 1) tegroup_impl_layout_add(layout, "cuBLASLt, dgrad", cublas);
    if (plan->cublas_parts > 1) tegroup_impl_layout_add(layout, "cuBLASLt, wgrad", cublas);
}

TEGROUP_IMPL_STATIC void tegroup_impl_lt_loop_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    const tegroup_problem *p = &plan->problem;
    tegroup_impl_layout_add(
        layout, "cuBLASLt, one part a stream",
        tegroup_impl_mul(tegroup_impl_align(tegroup_impl_cublas_bytes(plan), TEGROUP_ALIGNMENT), plan->cublas_parts));
    if (p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE) {
        tegroup_impl_layout_add(layout, "alpha", 4 * (int64_t)p->groups);
        tegroup_impl_layout_add(layout, "beta", 4 * (int64_t)p->groups);
    }
}
