/* ---- CPU GEMM ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/threads.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/product.h"
#include "core/quantised.h"
#include "cpu/rows.h"
#include "cpu/vectors.h"
#include "cpu/gemm_kernel.h"
#include "cpu/quantised.h"
#include "cpu/few.h"
#include "cpu/lines.h"
#include "cpu/beside.h"

/* @each-real */
/* tegroup_impl_cpu_pack for rows that an index picks: from row `row` and column `col` of the group on. The rows are the
 * lines, or where along_k is set what is summed over. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_pack_gathered_FSUF(tegroup_dtype dtype, const tegroup_gather *gather,
                                                             const tegroup_impl_block *block, int64_t row, int64_t col,
                                                             int along_k, int32_t count, int32_t k, int32_t width,
                                                             REAL *panel) {
    REAL x[TEGROUP_IMPL_CPU_TILE_N];
    int32_t rows = along_k ? k : count, cols = along_k ? count : k, r, c, j;
    if (count % width != 0)
        memset(panel + (int64_t)(count / width) * k * width, 0, (size_t)k * (size_t)width * sizeof(REAL));
    for (r = 0; r < rows; r++) {
        const int64_t at = tegroup_impl_row_at(gather, block, row + r);
        for (c = 0; c < cols; c += TEGROUP_IMPL_CPU_TILE_N) {
            const int32_t n = cols - c < TEGROUP_IMPL_CPU_TILE_N ? cols - c : TEGROUP_IMPL_CPU_TILE_N;
            if (at < 0) memset(x, 0, (size_t)n * sizeof(REAL));
            else tegroup_impl_load_row_FSUF(dtype, block->base, at + col + c, 1, n, x);
            for (j = c; j < c + n; j++) {
                const int32_t line = along_k ? j : r, kk = along_k ? r : j;
                panel[(int64_t)(line / width) * k * width + kk * width + line % width] = x[j - c];
            }
        }
    }
}

/* One tile of one group: up to tile_m rows from i0 on, columns j0.. of D, from an empty sum to the stored result. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_gemm_tile_FSUF(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                         const tegroup_impl_cpu_codes codes[2], int64_t i0, int64_t j0,
                                                         int32_t tile_m, REAL *scratch) {
    REAL *b = scratch, *sums = b + TEGROUP_IMPL_CPU_B_ROOM, *a = sums + TEGROUP_IMPL_CPU_SUMS_ROOM;
    int32_t m = (int32_t)tegroup_impl_min(tile_m, p->m - i0),
            n = (int32_t)tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_N, p->n - j0), i, j;
    REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta, scale = 1;
    int has_bias = desc->bias.dtype != TEGROUP_DTYPE_UNSET && desc->op != TEGROUP_OP_WGRAD;
    int wgrad = desc->op == TEGROUP_OP_WGRAD;
    /* Of few rows A is packed for much of k at a time: lines of B are then read on and on. */
    const int by_lines = tegroup_impl_cpu_by_lines_FSUF(desc, p),
              plain = desc->gather_b.rows == 0 && !codes[TEGROUP_IMPL_B].scaled.facts;
    const int32_t width = by_lines ? 1 : TEGROUP_IMPL_MICRO_M,
                  few = by_lines ? TEGROUP_IMPL_LINES_ROWS : TEGROUP_IMPL_FEW,
                  most = m <= few ? TEGROUP_IMPL_CPU_FEW_ROOM / few : TEGROUP_IMPL_CPU_TILE_K;
    int32_t kk;
    int64_t k0;
    memset(sums, 0, (size_t)(m + TEGROUP_IMPL_MICRO_M) * TEGROUP_IMPL_CPU_TILE_N * sizeof(REAL));
    for (k0 = 0; k0 < p->k; k0 += most) {
        const int32_t k = (int32_t)tegroup_impl_min(most, p->k - k0);
        if (codes[TEGROUP_IMPL_A].scaled.facts)
            tegroup_impl_cpu_pack_codes_FSUF(&codes[TEGROUP_IMPL_A], i0, k0, m, k, width, a);
        else if (desc->gather_a.rows > 0)
            tegroup_impl_cpu_pack_gathered_FSUF(desc->a.dtype, &desc->gather_a, &p->a, wgrad ? k0 : i0, wgrad ? i0 : k0,
                                                wgrad, m, k, width, a);
        else
            tegroup_impl_cpu_pack_FSUF(desc->a.dtype, p->a.base, p->a.first + i0 * p->a_line + k0 * p->a_k, p->a_line,
                                       p->a_k, m, k, width, a);
        if (by_lines) {
            tegroup_impl_cpu_lines_FSUF(desc->b.dtype, p->b.base, p->b.first + j0 * p->b_line + k0, p->b_line, m, n, k,
                                        a, sums);
            continue;
        }
        for (j = 0; j < n; j += TEGROUP_IMPL_MICRO_N_FSUF) { /* a panel of B stays in the first cache for all of A */
            const int32_t cols = n - j < TEGROUP_IMPL_MICRO_N_FSUF ? n - j : TEGROUP_IMPL_MICRO_N_FSUF;
            const int64_t at = p->b.first + (j0 + j) * p->b_line + k0 * p->b_k;
            kk = 0;
            if (plain)
                kk = TEGROUP_IMPL_FEW_FSUF(desc->b.dtype, p->b.base, at, p->b_line, p->b_k, m, cols, k, a, b, sums + j);
            if (plain && kk == 0)
                kk = tegroup_impl_cpu_beside_FSUF(desc->b.dtype, p->b.base, at, p->b_line, p->b_k, m, cols, k, a,
                                                  sums + j);
            for (; kk < k; kk += TEGROUP_IMPL_CPU_TILE_K) {
                const int32_t deep = k - kk < TEGROUP_IMPL_CPU_TILE_K ? k - kk : TEGROUP_IMPL_CPU_TILE_K;
                if (codes[TEGROUP_IMPL_B].scaled.facts)
                    tegroup_impl_cpu_pack_codes_FSUF(&codes[TEGROUP_IMPL_B], j0 + j, k0 + kk, cols, deep,
                                                     TEGROUP_IMPL_MICRO_N_FSUF, b);
                else if (desc->gather_b.rows > 0)
                    tegroup_impl_cpu_pack_gathered_FSUF(desc->b.dtype, &desc->gather_b, &p->b, k0 + kk, j0 + j, 1, cols,
                                                        deep, TEGROUP_IMPL_MICRO_N_FSUF, b);
                else
                    tegroup_impl_cpu_pack_FSUF(desc->b.dtype, p->b.base, at + kk * p->b_k, p->b_line, p->b_k, cols,
                                               deep, TEGROUP_IMPL_MICRO_N_FSUF, b);
                tegroup_impl_cpu_block_FSUF(m, deep, a + kk * TEGROUP_IMPL_MICRO_M, k, b, sums + j);
            }
        }
    }
    for (i = 0; i < m; i++) {
        REAL *x = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        int64_t c = p->c.first + (i0 + i) * p->c.ld + j0, d = p->d.first + (i0 + i) * p->d.ld + j0;
        if (p->k == 0 && beta != 0) { /* D = beta * C exactly: an empty sum is no term at all */
            tegroup_impl_load_row_FSUF(desc->d.dtype, p->c.base, c, 1, n, x);
            for (j = 0; j < n; j++) x[j] *= beta;
        } else if (p->k > 0) {
            for (j = 0; j < n; j++) x[j] *= alpha;
            if (beta != 0) tegroup_impl_add_row_FSUF(desc->d.dtype, p->c.base, c, n, beta, x);
        }
        if (has_bias) {
            if (desc->row_scale_dtype != TEGROUP_DTYPE_UNSET)
                scale = tegroup_impl_load_FSUF(desc->row_scale_dtype, desc->row_scale, p->a.row0 + i0 + i);
            tegroup_impl_add_row_FSUF(desc->bias.dtype, p->bias.base, p->bias.first + j0, n, scale, x);
        }
        tegroup_impl_store_row_FSUF(desc->d.dtype, p->d.base, d, 1, n, x);
    }
}

/* Bias gradient of one group, TILE_N columns from j0: sums of dY's rows in their order. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_bias_grad_FSUF(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                         const tegroup_impl_cpu_codes codes[2], int64_t j0,
                                                         REAL *scratch) {
    REAL sums[TEGROUP_IMPL_CPU_TILE_N];
    const tegroup_impl_block *dy = tegroup_impl_biased_block(desc, p);
    const tegroup_dtype dtype = tegroup_impl_biased(desc)->dtype;
    const tegroup_impl_cpu_codes *quantised = &codes[desc->bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A];
    int64_t n = tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_N, tegroup_impl_min(dy->cols, p->bias.cols) - j0), r, j;
    memset(sums, 0, sizeof sums);
    if (quantised->scaled.facts) tegroup_impl_cpu_sum_codes_FSUF(desc, quantised, dy, j0, n, scratch, sums);
    for (r = 0; r < dy->rows && !quantised->scaled.facts; r++) {
        REAL scale = desc->row_scale_dtype != TEGROUP_DTYPE_UNSET
                         ? tegroup_impl_load_FSUF(desc->row_scale_dtype, desc->row_scale, dy->row0 + r)
                         : 1;
        int64_t at = tegroup_impl_biased_row_at(desc, p, r);
        if (at >= 0) tegroup_impl_add_row_FSUF(dtype, dy->base, at + j0, n, scale, sums);
        else
            for (j = 0; j < n; j++) sums[j] += scale * 0; /* NaN, where the scale is no number */
    }
    if (desc->accumulate && dy->rows == 0) return; /* untouched, bit for bit */
    if (desc->accumulate) tegroup_impl_add_row_FSUF(desc->bias.dtype, p->bias.base, p->bias.first + j0, n, 1, sums);
    tegroup_impl_store_row_FSUF(desc->bias.dtype, p->bias.base, p->bias.first + j0, 1, n, sums);
}
/* @end */

/* Rows that follow group g (g = -1: that precede every group) and belong to nobody: [*from, *to). */
TEGROUP_IMPL_HD void tegroup_impl_gap_after(const tegroup_snapshot_view *view, int32_t g, int64_t rows, int64_t *from,
                                            int64_t *to) {
    int32_t h;
    *from = *to = 0;
    if (g >= 0 && view->rows[g] <= 0) return;
    if (g >= 0) *from = view->start[g] + view->rows[g];
    *to = rows;
    for (h = 0; h < view->header->groups; h++)
        if (view->rows[h] > 0 && view->start[h] >= *from && view->start[h] < *to) *to = view->start[h];
}

TEGROUP_IMPL_STATIC void tegroup_impl_cpu_fill_row(const tegroup_tensor *t, int64_t row, tegroup_tail tail) {
    double value = 0;
    int64_t j;
    if (tail == TEGROUP_TAIL_POISON) value = (double)tegroup_impl_f32_of_bits(0x7fc00000u);
    for (j = 0; j < t->shape.cols; j++) tegroup_impl_store_f64(t->dtype, t->data, row * tegroup_impl_ld(t) + j, value);
}

/* Everything that a thread of the team does; the loops hand out their iterations among the threads. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_gemm_thread(const tegroup_gemm_desc *desc,
                                                      const tegroup_snapshot_view views[4], int32_t tile_m,
                                                      int32_t thread) {
    tegroup_impl_cpu_codes codes[2];
    char *scratch = (char *)desc->options.workspace + thread * tegroup_impl_cpu_panel_bytes(desc->options.compute);
    int is_f64 = desc->options.compute == TEGROUP_COMPUTE_F64;
    int bias_grad = desc->op == TEGROUP_OP_WGRAD && desc->bias.dtype != TEGROUP_DTYPE_UNSET;
    int32_t groups = desc->a.shape.groups, g;
    int64_t t;
    tegroup_impl_cpu_codes_of(desc, TEGROUP_IMPL_A, &codes[TEGROUP_IMPL_A]);
    tegroup_impl_cpu_codes_of(desc, TEGROUP_IMPL_B, &codes[TEGROUP_IMPL_B]);
    for (g = 0; g < groups; g++) {
        tegroup_impl_product p = tegroup_impl_product_of(desc, views, g, 1, 0);
        int64_t tiles_n = tegroup_impl_ceil_div(tegroup_impl_max(0, p.n), TEGROUP_IMPL_CPU_TILE_N);
        int64_t tiles = p.skip ? 0 : tegroup_impl_ceil_div(tegroup_impl_max(0, p.m), tile_m) * tiles_n;
        int64_t chunks =
            bias_grad && !p.skip ? tegroup_impl_ceil_div(
                tegroup_impl_min(tegroup_impl_biased_block(desc, &p)->cols, p.bias.cols), TEGROUP_IMPL_CPU_TILE_N)
                                 : 0;
        if (p.untouched) tiles = 0;
        p.alpha *= tegroup_impl_cpu_codes_next(&codes[TEGROUP_IMPL_A], &desc->a, &views[TEGROUP_IMPL_A], g)
                   * tegroup_impl_cpu_codes_next(&codes[TEGROUP_IMPL_B], &desc->b, &views[TEGROUP_IMPL_B], g);
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1) nowait)
        for (t = 0; t < tiles; t++) {
            int64_t i0 = t / tiles_n * tile_m, j0 = t % tiles_n * TEGROUP_IMPL_CPU_TILE_N;
            if (is_f64) tegroup_impl_cpu_gemm_tile_f64(desc, &p, codes, i0, j0, tile_m, (double *)(void *)scratch);
            else tegroup_impl_cpu_gemm_tile_f32(desc, &p, codes, i0, j0, tile_m, (float *)(void *)scratch);
        }
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1) nowait)
        for (t = 0; t < chunks; t++) {
            const int64_t j0 = t * TEGROUP_IMPL_CPU_TILE_N;
            if (is_f64) tegroup_impl_cpu_bias_grad_f64(desc, &p, codes, j0, (double *)(void *)scratch);
            else tegroup_impl_cpu_bias_grad_f32(desc, &p, codes, j0, (float *)(void *)scratch);
        }
    }
    if (desc->tail != TEGROUP_TAIL_KEEP && views[TEGROUP_IMPL_D].header) {
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1) nowait)
        for (g = -1; g < groups; g++) {
            int64_t from, to;
            tegroup_impl_gap_after(&views[TEGROUP_IMPL_D], g, desc->d.shape.rows, &from, &to);
            for (; from < to; from++) tegroup_impl_cpu_fill_row(&desc->d, from, desc->tail);
        }
    }
}

/* The steps of a product, counted no further than a fork is worth: a tile packs its A and its B, two elements a step,
 * and the innermost kernel multiplies eight. */
TEGROUP_IMPL_STATIC double tegroup_impl_cpu_gemm_steps(const tegroup_gemm_desc *desc,
                                                       const tegroup_snapshot_view views[4]) {
    const tegroup_snapshot_view *rows = &views[TEGROUP_IMPL_D];
    const double groups = desc->a.shape.groups;
    double steps = 0;
    int32_t g;
    if (desc->tail != TEGROUP_TAIL_KEEP && rows->header)
        steps += groups * groups + (double)(desc->d.shape.rows - rows->header->rows_total) * (double)desc->d.shape.cols;
    for (g = 0; g < desc->a.shape.groups && steps < TEGROUP_IMPL_FORK_STEPS; g++) {
        const tegroup_impl_product p = tegroup_impl_product_of(desc, views, g, 1, 0);
        const double m = (double)p.m, n = (double)p.n, k = (double)p.k;
        if (p.skip) continue;
        if (p.m > 0 && p.n > 0 && !p.untouched)
            steps += n * k / 2 * (double)tegroup_impl_ceil_div(p.m, TEGROUP_IMPL_CPU_TILE_M)
                     + m * k / 2 * (double)tegroup_impl_ceil_div(p.n, TEGROUP_IMPL_CPU_TILE_N) + m * n * (1 + k / 8);
        if (desc->op == TEGROUP_OP_WGRAD && desc->bias.dtype != TEGROUP_DTYPE_UNSET)
            steps += (double)p.a.rows * (double)tegroup_impl_min(p.a.cols, p.bias.cols);
    }
    return steps;
}

TEGROUP_IMPL_STATIC int32_t tegroup_impl_cpu_gemm_team(int32_t threads, const tegroup_gemm_desc *desc,
                                                       const tegroup_snapshot_view views[4]) {
    return threads > 1 ? tegroup_impl_team(threads, tegroup_impl_cpu_gemm_steps(desc, views)) : 1;
}

/* Rows of a tile: fewer where each thread would have so few tall tiles that some threads wait for the others' last. */
#define TEGROUP_IMPL_CPU_TILES_EACH 8
TEGROUP_IMPL_STATIC int32_t tegroup_impl_cpu_gemm_tile_m(int32_t team, const tegroup_gemm_desc *desc,
                                                         const tegroup_snapshot_view views[4]) {
    const int64_t enough = (int64_t)TEGROUP_IMPL_CPU_TILES_EACH * team;
    int64_t tiles = 0;
    int32_t g;
    if (team == 1) return TEGROUP_IMPL_CPU_TILE_M;
    for (g = 0; g < desc->a.shape.groups && tiles < enough; g++) {
        const tegroup_impl_product p = tegroup_impl_product_of(desc, views, g, 1, 0);
        if (p.skip || p.m <= 0 || p.n <= 0) continue;
        tiles +=
            tegroup_impl_ceil_div(p.m, TEGROUP_IMPL_CPU_TILE_M) * tegroup_impl_ceil_div(p.n, TEGROUP_IMPL_CPU_TILE_N);
    }
    return tiles < enough ? TEGROUP_IMPL_CPU_LOW_M : TEGROUP_IMPL_CPU_TILE_M;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cpu_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         struct CUstream_st *stream, tegroup_error *error) {
    tegroup_snapshot_view views[4];
    tegroup_gemm_desc read = *desc;
    int32_t i, team, tile_m;
    const tegroup_tensor *tensors[4];
    read.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    tensors[TEGROUP_IMPL_A] = &desc->a;
    tensors[TEGROUP_IMPL_B] = &desc->b;
    tensors[TEGROUP_IMPL_C] = &desc->c;
    tensors[TEGROUP_IMPL_D] = &desc->d;
    for (i = 0; i < 4; i++)
        views[i] =
            tegroup_snapshot_read(tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_ragged(&tensors[i]->shape)
                                      ? tensors[i]->shape.snapshot
                                      : NULL);
    (void)plan, (void)stream, (void)error;
    team = tegroup_impl_cpu_gemm_team(plan->threads, &read, views);
    tile_m = tegroup_impl_cpu_gemm_tile_m(team, &read, views);
#if defined(_OPENMP)
#pragma omp parallel num_threads((int)team)
    tegroup_impl_cpu_gemm_thread(&read, views, tile_m, (int32_t)omp_get_thread_num());
#else
    tegroup_impl_cpu_gemm_thread(&read, views, tile_m, 0); /* there is one thread */
#endif
    return TEGROUP_OK;
}
