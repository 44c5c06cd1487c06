/* Router, permutation, combine and activations with their gradients: against references in FP64, against finite differences
 * in FP64, and against what the descriptors promise to leave alone. */
#define TEGROUP_EXTERN
#include "activations.h"
#include "test.h"
#include "ties.h"

static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F64};

/* A guarded, poisoned matrix, with or without room between its rows. */
static tegroup_matrix matrix(rng *r, tegroup_dtype dtype, int64_t rows, int64_t cols) {
    tegroup_matrix m = tegroup_matrix_of(NULL, rows, cols, dtype);
    if (rng_chance(r, 50)) m.ld = cols + rng_int(r, 1, 5);
    int64_t elements = rows > 0 ? (rows - 1) * (m.ld != 0 ? m.ld : cols) + cols : 0;
    m.data = guarded_skewed((size_t)elements * size_of(dtype), size_of(dtype) * (size_t)rng_int(r, 0, 3));
    return m;
}
static int64_t place(const tegroup_matrix *m, int64_t row, int64_t col) { return row * (m->ld != 0 ? m->ld : m->cols) + col; }
static double at(const tegroup_matrix *m, int64_t row, int64_t col) { return load(m->dtype, m->data, place(m, row, col)); }
static void set(tegroup_matrix *m, int64_t row, int64_t col, double x) { store(m->dtype, m->data, place(m, row, col), x); }
/* Integers of either type, each chosen anew. */
static tegroup_dtype integers(rng *r) { return rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64; }
static int64_t whole(const tegroup_matrix *m, int64_t row, int64_t col) {
    if (m->dtype != TEGROUP_DTYPE_I32 && m->dtype != TEGROUP_DTYPE_I64) abort();
    return m->dtype == TEGROUP_DTYPE_I32 ? ((int32_t *)m->data)[place(m, row, col)] : ((int64_t *)m->data)[place(m, row, col)];
}
static tegroup_matrix no_matrix(void) { tegroup_matrix m; memset(&m, 0, sizeof m); return m; }
static void set_whole(tegroup_matrix *m, int64_t row, int64_t col, int64_t x) {
    if (m->dtype == TEGROUP_DTYPE_I32) ((int32_t *)m->data)[place(m, row, col)] = (int32_t)x;
    else ((int64_t *)m->data)[place(m, row, col)] = x;
}
/* What is no group's, some of it only as long as nobody looks at its lower half alone. */
static int64_t nonsense(rng *r, tegroup_dtype dtype, int32_t groups) {
    const int64_t narrow[] = {-1, -1, -2, INT32_MIN, INT32_MAX, groups}, wide[] = {INT64_MIN, INT64_MAX, INT64_C(1) << 32, -(INT64_C(1) << 32)};
    return dtype == TEGROUP_DTYPE_I64 && rng_chance(r, 40) ? wide[rng_int(r, 0, 3)] : narrow[rng_int(r, 0, 5)];
}
static tegroup_matrix filled(rng *r, tegroup_dtype dtype, int64_t rows, int64_t cols, double size) {
    tegroup_matrix m = matrix(r, dtype, rows, cols);
    for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < cols; j++) set(&m, i, j, size * rng_normal(r));
    return m;
}
static void remember_all(void *mark) {
    for (guarded_node *n = guarded_top; n != (guarded_node *)mark; n = n->older) if (!n->scratch) guarded_remember(n->data);
}
/* The elements of m are its own to write; forget what they were. */
static void may_change_row(const tegroup_matrix *m, int64_t row) {
    guarded_node *n = guarded_find(m->data);
    size_t from = (size_t)place(m, row, 0) * size_of(m->dtype);
    memcpy(n->copy + from, n->data + from, (size_t)m->cols * size_of(m->dtype));
}
static void may_change(const tegroup_matrix *m) { for (int64_t i = 0; i < m->rows; i++) may_change_row(m, i); }
static int64_t disturbed(void *mark) {
    int64_t changed = guards_changed();
    for (guarded_node *n = guarded_top; n != (guarded_node *)mark; n = n->older) if (!n->scratch && n->copy != NULL) changed += guarded_changed(n->data);
    return changed;
}

/* Largest error / bound seen, by what was tested. */
static double worst_router, worst_router_grad, worst_permute;
static int within(double got, double want, double bound, double *worst) {
    double ratio = got == want ? 0 : fabs(got - want) / bound;
    if (!(ratio <= 1)) fprintf(stderr, "got %.17g, want %.17g, bound %g\n", got, want, bound);
    if (ratio > *worst || isnan(ratio)) *worst = ratio;
    return ratio <= 1;
}
/* What rounding to a stored type may add. */
static double stored(tegroup_dtype dtype, double x) { return unit_roundoff(dtype) * fabs(x) * (1 + 0x1p-6) + smallest_step(dtype) / 2; }

/* ---- counts ------------------------------------------------------------------------------------------------------------ */

TEST(moe, counts_of_groups) {
    rng r = rng_seed(4019);
    int64_t counted = 0, nobodys = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        const int32_t groups = (int32_t)(rng_chance(&r, 5) ? TEGROUP_MAX_GROUPS : rng_int(&r, 0, 20));
        const int offsets = rng_chance(&r, 60), flat = rng_chance(&r, 30);
        tegroup_count_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .groups = groups,
                                .labels = matrix(&r, integers(&r), flat ? 1 : rng_int(&r, 0, 40), flat ? rng_int(&r, 0, 300) : rng_int(&r, 0, 9)),
                                .counts = matrix(&r, integers(&r), 1, groups)};
        if (offsets) d.offsets = matrix(&r, integers(&r), 1, groups + 1);
        int64_t *want = (int64_t *)scratch(8 * (size_t)groups + 8), before = 0;
        memset(want, 0, 8 * (size_t)groups);
        for (int64_t t = 0; t < d.labels.rows; t++)
            for (int64_t j = 0; j < d.labels.cols; j++) {
                int64_t label = groups > 0 && rng_chance(&r, 85) ? rng_int(&r, 0, groups - 1) : nonsense(&r, d.labels.dtype, groups);
                set_whole(&d.labels, t, j, label);
                if (label >= 0 && label < groups) want[label]++, counted++;
                else nobodys++;
            }
        remember_all(mark);
        ASSERT_EQ(tegroup_count(&d, NULL, NULL), TEGROUP_OK);
        for (int32_t g = 0; g < groups; g++) {
            ASSERT_EQ(whole(&d.counts, 0, g), want[g]);
            if (offsets) ASSERT_EQ(whole(&d.offsets, 0, g), before);
            before += want[g];
        }
        if (offsets) ASSERT_EQ(whole(&d.offsets, 0, groups), before);
        may_change(&d.counts);
        if (offsets) may_change(&d.offsets);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(counted > 0 && nobodys > 0);
}

/* ---- router ------------------------------------------------------------------------------------------------------------ */

typedef struct router_case { tegroup_router_desc d; double loss[2]; } router_case;

static void router_make(router_case *c, rng *r, tegroup_dtype logits, tegroup_dtype probabilities, int64_t tokens, int32_t experts, int32_t k) {
    tegroup_router_desc *d = &c->d;
    memset(d, 0, sizeof *d);
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->experts = experts;
    d->k = k;
    d->normalize = (int32_t)rng_int(r, 0, 1);
    d->logits = filled(r, logits, tokens, experts, 2);
    d->probabilities = matrix(r, probabilities, tokens, experts);
    d->weights = matrix(r, probabilities, tokens, k);
    d->indices = matrix(r, integers(r), tokens, k);
    d->counts = matrix(r, integers(r), 1, experts);
    d->balance_coefficient = 0.01;
    d->balance_loss = (double *)guarded(sizeof(double));
}

TEST(moe, router_forward) {
    rng r = rng_seed(4001);
    int64_t equal = 0;
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark();
        tegroup_dtype in = dtypes[rng_int(&r, 0, 3)], out = in == TEGROUP_DTYPE_F64 || rng_chance(&r, 20) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        int32_t experts = (int32_t)rng_int(&r, 1, 70), k = (int32_t)rng_int(&r, 1, experts < 9 ? experts : 9);
        int64_t tokens = rng_int(&r, 0, 40);
        router_case c;
        router_make(&c, &r, in, out, tokens, experts, k);
        if (rng_chance(&r, 40)) /* few values, hence ties */
            for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) set(&c.d.logits, t, e, (double)rng_int(&r, -2, 2));
        if (rng_chance(&r, 20)) /* close together, all or some */
            for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) if (t % 2 || rng_chance(&r, 50)) set(&c.d.logits, t, e, 0x1p-22 * at(&c.d.logits, t, e));
        if (rng_chance(&r, 30)) /* far from zero and far apart: exp of such a logit is no number of any type */
            for (int64_t t = 0; t < tokens; t++)
                for (int32_t e = 0; e < experts; e++) set(&c.d.logits, t, e, (t % 2 ? 1000 : -1000) + 16 * at(&c.d.logits, t, e));
        remember_all(mark);
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        double u = unit_roundoff(out), mean[70], share[70], loss = 0;
        int64_t counts[70] = {0};
        memset(mean, 0, sizeof mean);
        for (int64_t t = 0; t < tokens; t++) {
            double largest = -INFINITY, sum = 0, chosen = 0;
            char taken[70] = {0};
            for (int32_t e = 0; e < experts; e++) largest = fmax(largest, at(&c.d.logits, t, e));
            for (int32_t e = 0; e < experts; e++) sum += exp(at(&c.d.logits, t, e) - largest);
            for (int32_t e = 0; e < experts; e++) { /* x - max errs by u |x - max|, exp by a few u, the sum by a u a term */
                double x = at(&c.d.logits, t, e) - largest, p = exp(x) / sum;
                ASSERT_TRUE(within(at(&c.d.probabilities, t, e), p, (experts + 2 * fabs(x) + 8) * u * p + smallest_step(out), &worst_router));
                mean[e] += p / (double)tokens;
            }
            for (int32_t j = 0; j < k; j++) {
                int64_t e = whole(&c.d.indices, t, j);
                int32_t best = -1;
                for (int32_t f = 0; f < experts; f++) /* the largest not yet taken, of equals the larger logit, of these the lowest */
                    if (!taken[f] && (best < 0 || at(&c.d.probabilities, t, f) > at(&c.d.probabilities, t, best)
                                      || (at(&c.d.probabilities, t, f) == at(&c.d.probabilities, t, best) && at(&c.d.logits, t, f) > at(&c.d.logits, t, best)))) best = f;
                for (int32_t f = 0; f < experts; f++) equal += !taken[f] && f != best && at(&c.d.probabilities, t, f) == at(&c.d.probabilities, t, best);
                ASSERT_EQ(e, best);
                taken[e] = 1;
                counts[e]++;
                chosen += at(&c.d.probabilities, t, e);
            }
            double total = 0;
            for (int32_t j = 0; j < k; j++) {
                double p = at(&c.d.probabilities, t, whole(&c.d.indices, t, j)), w = at(&c.d.weights, t, j);
                total += w;
                if (!c.d.normalize) ASSERT_EQ(w, p);
                else ASSERT_TRUE(within(w, p / chosen, (k + 2) * u * p / chosen, &worst_router));
            }
            if (c.d.normalize) ASSERT_TRUE(within(total, 1, (2 * k + 4) * u, &worst_router));
        }
        for (int32_t e = 0; e < experts; e++) {
            ASSERT_EQ(whole(&c.d.counts, 0, e), counts[e]);
            share[e] = tokens > 0 ? (double)counts[e] / (double)(tokens * k) : 0;
            loss += share[e] * mean[e];
        }
        loss *= 0.01 * experts;
        ASSERT_TRUE(within(*c.d.balance_loss, loss, (double)(experts + 40) * u * loss + ((double)(tokens + experts) + 10) * 0x1p-53 * loss + 1e-300, &worst_router));
        may_change(&c.d.probabilities); may_change(&c.d.weights); may_change(&c.d.indices); may_change(&c.d.counts);
        memcpy(guarded_find(c.d.balance_loss)->copy, c.d.balance_loss, sizeof(double));
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_GT(equal, 0);
    printf("router: error/bound at most %.3f\n", worst_router);
}

/* The largest logit is taken off all of them, wherever it stands: exp of such a difference is 0 in every type, and of
 * its opposite no number. */
TEST(moe, router_of_one_far_above_the_others) {
    rng r = rng_seed(4017);
    for (int i = 0; i < 5 * 4; i++) {
        void *mark = guards_mark();
        const tegroup_dtype in = dtypes[i % 4], out = in == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        router_case c;
        router_make(&c, &r, in, out, 1, 5, 1);
        for (int32_t e = 0; e < 5; e++) set(&c.d.logits, 0, e, e == i / 4 ? 1024 : -1024);
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        for (int32_t e = 0; e < 5; e++) ASSERT_EQ(at(&c.d.probabilities, 0, e), e == i / 4);
        ASSERT_EQ(whole(&c.d.indices, 0, 0), i / 4);
        ASSERT_EQ(at(&c.d.weights, 0, 0), 1);
        guards_release(mark);
    }
}

/* Every type that holds the row, every number of choices. */
TEST(moe, router_ties) {
    rng r = rng_seed(4015);
    for (int i = 0; i < TIES; i++)
        for (int32_t k = 1; k <= 8; k++)
            for (int type = 0; type < 8; type++) {
                void *mark = guards_mark();
                tegroup_dtype in = dtypes[type / 2], out = type % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
                router_case c;
                if (i >= TIES_OF_HALVES && in != TEGROUP_DTYPE_F64) continue;
                router_make(&c, &r, in, out, 1, 8, k);
                for (int32_t e = 0; e < 8; e++) set(&c.d.logits, 0, e, ties[i].logits[e]);
                ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
                for (int32_t j = 0; j < k; j++) ASSERT_EQ(whole(&c.d.indices, 0, j), ties[i].order[j]);
                guards_release(mark);
            }
}

/* Logits that are not numbers choose something, but never the same expert twice and none that does not exist. */
TEST(moe, router_survives_nan) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1, -1, 3e38};
    rng r = rng_seed(4002);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        int32_t experts = (int32_t)rng_int(&r, 1, 12), k = (int32_t)rng_int(&r, 1, experts);
        router_case c;
        router_make(&c, &r, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32, 9, experts, k);
        for (int64_t t = 0; t < 9; t++) for (int32_t e = 0; e < experts; e++) if (rng_chance(&r, 30)) set(&c.d.logits, t, e, odd[rng_int(&r, 0, 5)]);
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        int64_t total = 0;
        for (int64_t t = 0; t < 9; t++)
            for (int32_t j = 0; j < k; j++) {
                int64_t e = whole(&c.d.indices, t, j);
                ASSERT_TRUE(e >= 0 && e < experts);
                for (int32_t h = 0; h < j; h++) ASSERT_NE(e, whole(&c.d.indices, t, h));
            }
        for (int32_t e = 0; e < experts; e++) total += whole(&c.d.counts, 0, e);
        ASSERT_EQ(total, (int64_t)9 * k);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* Any outputs may be left out, and the others have the bits that they have with all of them. */
TEST(moe, router_writes_what_is_wanted) {
    rng r = rng_seed(4018);
    for (int64_t i = scaled(20) * 15; i > 0; i--) {
        void *mark = guards_mark();
        const int wanted = (int)(i % 15) + 1; /* a bit for each of the four */
        tegroup_dtype in = dtypes[rng_int(&r, 0, 3)], real = wanted & 3 ? dtypes[3 * rng_int(&r, 0, 1)] : in == TEGROUP_DTYPE_F64 ? in : TEGROUP_DTYPE_F32;
        int32_t experts = (int32_t)(i == 15 ? TEGROUP_MAX_GROUPS : rng_int(&r, 1, 70)), k = (int32_t)rng_int(&r, 1, experts < 9 ? experts : 9);
        int64_t tokens = rng_int(&r, 0, 40);
        router_case c;
        router_make(&c, &r, in, real, tokens, experts, k);
        if (rng_chance(&r, 40)) for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) set(&c.d.logits, t, e, (double)rng_int(&r, -2, 2));
        tegroup_router_desc some = c.d;
        tegroup_matrix *in_all[] = {&c.d.probabilities, &c.d.weights, &c.d.indices, &c.d.counts}, *in_some[] = {&some.probabilities, &some.weights, &some.indices, &some.counts};
        for (int o = 0; o < 4; o++) {
            if (wanted >> o & 1) *in_some[o] = matrix(&r, in_some[o]->dtype, in_some[o]->rows, in_some[o]->cols);
            else memset(in_some[o], 0, sizeof *in_some[o]);
        }
        some.balance_loss = (wanted & 9) == 9 ? (double *)guarded(sizeof(double)) : NULL;
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        remember_all(mark);
        ASSERT_EQ(tegroup_router(&some, NULL, NULL), TEGROUP_OK);
        for (int o = 0; o < 4; o++)
            for (int64_t row = 0; wanted >> o & 1 && row < in_some[o]->rows; row++) {
                const size_t size = size_of(in_some[o]->dtype);
                ASSERT_EQ(0, memcmp((char *)in_some[o]->data + (size_t)place(in_some[o], row, 0) * size, (char *)in_all[o]->data + (size_t)place(in_all[o], row, 0) * size, (size_t)in_some[o]->cols * size));
                may_change_row(in_some[o], row);
            }
        if (some.balance_loss) {
            ASSERT_EQ(*some.balance_loss, *c.d.balance_loss);
            memcpy(guarded_find(some.balance_loss)->copy, some.balance_loss, sizeof(double));
        }
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
}

static tegroup_router_backward_desc backward_of(const router_case *c, tegroup_matrix grad_weights, tegroup_matrix grad_logits) {
    tegroup_router_backward_desc b;
    memset(&b, 0, sizeof b);
    b.struct_size = sizeof b;
    b.space = TEGROUP_SPACE_HOST;
    b.experts = c->d.experts;
    b.k = c->d.k;
    b.normalize = c->d.normalize;
    b.probabilities = c->d.probabilities;
    b.indices = c->d.indices;
    b.counts = c->d.counts;
    b.grad_weights = grad_weights;
    b.grad_logits = grad_logits;
    b.balance_coefficient = c->d.balance_coefficient;
    return b;
}

/* d/d logits of sum(weights * G) + loss_scale * balance_loss, the choice held fixed: central differences in FP64. */
TEST(moe, router_gradient_by_finite_differences) {
    rng r = rng_seed(4003);
    double worst = 0;
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        int32_t experts = (int32_t)rng_int(&r, 2, 12), k = (int32_t)rng_int(&r, 1, experts < 4 ? experts : 4);
        int64_t tokens = rng_int(&r, 1, 8);
        router_case c;
        router_make(&c, &r, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, tokens, experts, k);
        c.d.balance_coefficient = rng_chance(&r, 30) ? 0 : 0.5;
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = backward_of(&c, filled(&r, TEGROUP_DTYPE_F64, tokens, k, 1), matrix(&r, TEGROUP_DTYPE_F64, tokens, experts));
        b.loss_scale = rng_chance(&r, 50) ? 0 : 3;
        double scale = b.loss_scale != 0 ? b.loss_scale : 1;
        if (b.balance_coefficient == 0) memset(&b.counts, 0, sizeof b.counts);
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        int32_t *kept = (int32_t *)scratch((size_t)(tokens * k) * 4);
        for (int64_t t = 0; t < tokens; t++) for (int32_t j = 0; j < k; j++) kept[t * k + j] = (int32_t)whole(&c.d.indices, t, j);
        for (int64_t t = 0; t < tokens; t++)
            for (int32_t e = 0; e < experts; e++) {
                double value[2], x = at(&c.d.logits, t, e), step = 1e-5;
                int same_choice = 1;
                for (int side = 0; side < 2; side++) {
                    set(&c.d.logits, t, e, side ? x + step : x - step);
                    ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
                    value[side] = scale * *c.d.balance_loss;
                    for (int64_t q = 0; q < tokens; q++)
                        for (int32_t j = 0; j < k; j++) {
                            same_choice &= whole(&c.d.indices, q, j) == kept[q * k + j];
                            value[side] += at(&c.d.weights, q, j) * at(&b.grad_weights, q, j);
                        }
                }
                set(&c.d.logits, t, e, x);
                if (!same_choice) continue; /* a tie within the step */
                double numeric = (value[1] - value[0]) / (2 * step), analytic = at(&b.grad_logits, t, e);
                double error = fabs(numeric - analytic) / (fabs(analytic) + 1e-2);
                if (error > worst) worst = error;
                ASSERT_LT(error, 1e-6);
            }
        guards_release(mark);
    }
    printf("router gradient against differences: %.1e\n", worst);
    ASSERT_GT(worst, 0);
}

TEST(moe, router_gradient_in_every_type) {
    rng r = rng_seed(4004);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        tegroup_dtype out = dtypes[rng_int(&r, 0, 3)], p = rng_chance(&r, 30) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        int32_t experts = (int32_t)rng_int(&r, 1, 40), k = (int32_t)rng_int(&r, 1, experts < 8 ? experts : 8);
        int64_t tokens = rng_int(&r, 0, 20);
        router_case c;
        router_make(&c, &r, TEGROUP_DTYPE_F32, p, tokens, experts, k);
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = backward_of(&c, filled(&r, p, tokens, k, 1), matrix(&r, out, tokens, experts));
        remember_all(mark);
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < tokens; t++) {
            double g[40], size[40], chosen = 0, dot = 0, dot_size = 0, mean = 0, mean_size = 0, u = unit_roundoff(p);
            for (int32_t j = 0; j < k; j++) chosen += at(&b.probabilities, t, whole(&b.indices, t, j));
            for (int32_t j = 0; j < k; j++) {
                dot += at(&b.grad_weights, t, j) * at(&b.probabilities, t, whole(&b.indices, t, j)) / chosen;
                dot_size += fabs(at(&b.grad_weights, t, j)) * at(&b.probabilities, t, whole(&b.indices, t, j)) / chosen;
            }
            for (int32_t e = 0; e < experts; e++) {
                g[e] = b.balance_coefficient * experts * (double)whole(&b.counts, 0, e) / (double)(tokens * k) / (double)tokens;
                size[e] = fabs(g[e]);
                for (int32_t j = 0; j < k; j++)
                    if (whole(&b.indices, t, j) == e) {
                        double w = at(&b.grad_weights, t, j);
                        g[e] += b.normalize ? (w - dot) / chosen : w;
                        size[e] += b.normalize ? (fabs(w) + dot_size) / chosen : fabs(w);
                    }
                mean += at(&b.probabilities, t, e) * g[e];
                mean_size += at(&b.probabilities, t, e) * size[e];
            }
            for (int32_t e = 0; e < experts; e++) {
                double q = at(&b.probabilities, t, e), want = q * (g[e] - mean);
                ASSERT_TRUE(within(at(&b.grad_logits, t, e), want, (experts + 3 * k + 12) * u * q * (size[e] + mean_size) + stored(out, want) + smallest_step(p), &worst_router_grad));
            }
        }
        may_change(&b.grad_logits);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    printf("router gradient: error/bound at most %.3f\n", worst_router_grad);
}

/* Choices dropped after routing: the weights still add up to 1 with theirs among them, but theirs go nowhere. Differences of
 * sum(weights * G) over those that are left, in FP64, with the router's own choice. */
TEST(moe, router_gradient_of_dropped_choices) {
    rng r = rng_seed(4013);
    double worst = 0;
    int64_t dropped = 0;
    for (int64_t i = scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        int32_t experts = (int32_t)rng_int(&r, 2, 12), k = (int32_t)rng_int(&r, 1, experts < 5 ? experts : 5);
        int64_t tokens = rng_int(&r, 1, 8);
        router_case c;
        router_make(&c, &r, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, tokens, experts, k);
        c.d.balance_coefficient = rng_chance(&r, 30) ? 0 : 0.5;
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = backward_of(&c, filled(&r, TEGROUP_DTYPE_F64, tokens, k, 1), matrix(&r, TEGROUP_DTYPE_F64, tokens, experts));
        tegroup_matrix own = c.d.indices;
        b.indices = matrix(&r, integers(&r), tokens, k);
        for (int64_t t = 0; t < tokens; t++)
            for (int32_t j = 0; j < k; j++) {
                set_whole(&b.indices, t, j, whole(&own, t, j));
                if (!rng_chance(&r, 40)) continue;
                set_whole(&b.indices, t, j, nonsense(&r, b.indices.dtype, experts));
                set(&b.grad_weights, t, j, NAN); /* not read */
                dropped++;
            }
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < tokens; t++)
            for (int32_t e = 0; e < experts; e++) {
                double value[2], x = at(&c.d.logits, t, e), step = 1e-5;
                int same_choice = 1;
                for (int side = 0; side < 2; side++) {
                    set(&c.d.logits, t, e, side ? x + step : x - step);
                    c.d.indices = matrix(&r, integers(&r), tokens, k);
                    ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
                    value[side] = *c.d.balance_loss;
                    for (int64_t q = 0; q < tokens; q++)
                        for (int32_t j = 0; j < k; j++) {
                            int64_t index = whole(&b.indices, q, j);
                            same_choice &= whole(&c.d.indices, q, j) == whole(&own, q, j);
                            if (index >= 0 && index < experts) value[side] += at(&c.d.weights, q, j) * at(&b.grad_weights, q, j);
                        }
                }
                set(&c.d.logits, t, e, x);
                if (!same_choice) continue; /* a tie within the step */
                double numeric = (value[1] - value[0]) / (2 * step), analytic = at(&b.grad_logits, t, e), error = fabs(numeric - analytic) / (fabs(analytic) + 1e-2);
                if (!(error <= worst)) worst = error;
                ASSERT_LT(error, 1e-6);
            }
        guards_release(mark);
    }
    ASSERT_GT(dropped, 0);
    printf("router gradient with dropped choices against differences: %.1e\n", worst);
}

/* The bits are those of the router's own indices and a gradient of 0 for the weights of what was dropped; experts of equal logits are
 * told apart as the router does, and tokens that lost every choice have the balance's gradient alone. */
TEST(moe, router_gradient_names_the_dropped) {
    rng r = rng_seed(4014);
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark();
        tegroup_dtype out = dtypes[rng_int(&r, 0, 3)], p = rng_chance(&r, 30) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        int32_t experts = (int32_t)rng_int(&r, 1, 80), k = (int32_t)(rng_chance(&r, 10) && experts >= 64 ? 64 : rng_int(&r, 1, experts < 9 ? experts : 9));
        int64_t tokens = rng_int(&r, 0, 20);
        router_case c;
        router_make(&c, &r, TEGROUP_DTYPE_F32, p, tokens, experts, k);
        if (rng_chance(&r, 30)) for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) set(&c.d.logits, t, e, (double)rng_int(&r, -2, 2));
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc all = backward_of(&c, filled(&r, p, tokens, k, 1), matrix(&r, out, tokens, experts)), lossy = all;
        lossy.indices = matrix(&r, integers(&r), tokens, k);
        lossy.grad_weights = matrix(&r, p, tokens, k);
        lossy.grad_logits = matrix(&r, out, tokens, experts);
        int chance = (int)rng_int(&r, 0, 100);
        for (int64_t t = 0; t < tokens; t++)
            for (int32_t j = 0; j < k; j++) {
                int drops = rng_chance(&r, chance);
                set_whole(&lossy.indices, t, j, drops ? -1 : whole(&all.indices, t, j));
                set(&lossy.grad_weights, t, j, drops ? (double)NAN : at(&all.grad_weights, t, j));
                if (drops) set(&all.grad_weights, t, j, 0);
            }
        ASSERT_EQ(tegroup_router_backward(&all, NULL, NULL), TEGROUP_OK);
        remember_all(mark);
        ASSERT_EQ(tegroup_router_backward(&lossy, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) ASSERT_EQ(at(&lossy.grad_logits, t, e), at(&all.grad_logits, t, e));
        may_change(&lossy.grad_logits);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
}

/* ---- router schemes ------------------------------------------------------------------------------------------------------ */

#define SCHEME_WORST , &worst_scheme
#define SCHEME_MATRIX(r, dtype, rows, cols) matrix(r, dtype, rows, cols)
#include "schemes.h"

static void scheme_may_change(const tegroup_router_desc *d) {
    may_change(&d->probabilities), may_change(&d->weights), may_change(&d->indices), may_change(&d->counts), may_change(&d->loss_gradients);
    memcpy(guarded_find(d->balance_loss)->copy, d->balance_loss, 8);
    memcpy(guarded_find(d->z_loss)->copy, d->z_loss, 8);
}

TEST(moe, router_schemes) {
    rng r = rng_seed(4020);
    for (int64_t i = scaled(1200); i > 0; i--) {
        void *mark = guards_mark();
        const tegroup_dtype in = dtypes[rng_int(&r, 0, 3)], out = in == TEGROUP_DTYPE_F64 || rng_chance(&r, 20) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        struct { tegroup_router_desc d; int64_t counts[SCHEME_EXPERTS]; } c;
        scheme_make(&c.d, &r, in, out, rng_chance(&r, 50) ? 1 : rng_int(&r, 0, 5), rng_int(&r, 0, 9));
        if (rng_chance(&r, 40)) /* few values, hence ties */
            for (int64_t t = 0; t < c.d.logits.rows; t++) for (int32_t e = 0; e < c.d.experts; e++) set(&c.d.logits, t, e, (double)rng_int(&r, -2, 2));
        if (rng_chance(&r, 20)) /* far out: scores of sigmoid are 1 and as good as 0 */
            for (int64_t t = 0; t < c.d.logits.rows; t++) for (int32_t e = 0; e < c.d.experts; e++) set(&c.d.logits, t, e, 30 * at(&c.d.logits, t, e));
        remember_all(mark);
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        ASSERT_STREQ("", scheme_wrong(&c.d, c.counts));
        ASSERT_STREQ("", scheme_losses_wrong(&c.d));
        scheme_may_change(&c.d);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    printf("router schemes: error/bound at most %.3f\n", worst_scheme);
}

TEST(moe, router_scheme_gradients_in_every_type) {
    rng r = rng_seed(4021);
    int64_t dropped = 0;
    for (int64_t i = scaled(2400); i > 0; i--) {
        void *mark = guards_mark();
        const tegroup_dtype out = dtypes[rng_int(&r, 0, 3)], p = rng_chance(&r, 40) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        struct { tegroup_router_desc d; int64_t counts[SCHEME_EXPERTS]; } c;
        scheme_make(&c.d, &r, p, p, rng_chance(&r, 50) ? 1 : rng_int(&r, 0, 5), rng_int(&r, 0, 9));
        if (rng_chance(&r, 15)) scheme_far_below(&c.d, &r);
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = scheme_backward_of(&c.d, filled(&r, p, c.d.logits.rows, c.d.k, 1), matrix(&r, out, c.d.logits.rows, c.d.experts));
        b.loss_scale = rng_chance(&r, 50) ? 0 : 3;
        if (b.scheme.z_coefficient == 0 && rng_chance(&r, 30)) memset(&b.loss_gradients, 0, sizeof b.loss_gradients);
        const int drops = rng_chance(&r, 40) ? 40 : 0;
        for (int64_t t = 0; t < c.d.logits.rows; t++) for (int32_t j = 0; j < c.d.k; j++)
            if (rng_chance(&r, drops)) set_whole(&b.indices, t, j, nonsense(&r, b.indices.dtype, b.experts)), dropped++;
        remember_all(mark);
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        ASSERT_STREQ("", scheme_gradient_wrong(&b));
        may_change(&b.grad_logits);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_GT(dropped, 0);
    printf("router schemes and gradients: error/bound at most %.3f\n", worst_scheme);
}

/* d/d logits of sum(weights * G) + loss_scale * (balance_loss + z_loss), the choice held fixed: central differences in FP64. */
TEST(moe, router_scheme_gradients_by_finite_differences) {
    rng r = rng_seed(4022);
    double worst = 0;
    int64_t probed[3] = {0, 0, 0};
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        struct { tegroup_router_desc d; int64_t counts[SCHEME_EXPERTS]; } c;
        scheme_make(&c.d, &r, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, rng_int(&r, 1, 3), rng_int(&r, 1, 3));
        const int64_t tokens = c.d.logits.rows;
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = scheme_backward_of(&c.d, filled(&r, TEGROUP_DTYPE_F64, tokens, c.d.k, 1), matrix(&r, TEGROUP_DTYPE_F64, tokens, c.d.experts));
        b.loss_scale = rng_chance(&r, 50) ? 0 : 3;
        const double scale = b.loss_scale != 0 ? b.loss_scale : 1;
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        int32_t *kept = (int32_t *)scratch((size_t)(tokens * c.d.k) * 4 + 4);
        for (int64_t t = 0; t < tokens; t++) for (int32_t j = 0; j < c.d.k; j++) kept[t * c.d.k + j] = (int32_t)whole(&c.d.indices, t, j);
        for (int probe = 0; probe < 40; probe++) {
            const int64_t t = rng_int(&r, 0, tokens - 1), e = rng_int(&r, 0, c.d.experts - 1);
            double value[2], x = at(&c.d.logits, t, e), step = 1e-5;
            int same_choice = 1;
            for (int side = 0; side < 2; side++) {
                set(&c.d.logits, t, e, side ? x + step : x - step);
                ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
                value[side] = scale * (*c.d.balance_loss + *c.d.z_loss);
                for (int64_t q = 0; q < tokens; q++)
                    for (int32_t j = 0; j < c.d.k; j++) {
                        same_choice &= whole(&c.d.indices, q, j) == kept[q * c.d.k + j];
                        value[side] += at(&c.d.weights, q, j) * at(&b.grad_weights, q, j);
                    }
            }
            set(&c.d.logits, t, e, x);
            if (!same_choice) continue; /* a tie within the step */
            probed[c.d.scheme.score]++;
            const double numeric = (value[1] - value[0]) / (2 * step), analytic = at(&b.grad_logits, t, e);
            const double error = fabs(numeric - analytic) / (fabs(analytic) + 1e-2);
            if (error > worst) worst = error;
            ASSERT_LT(error, 1e-6);
        }
        guards_release(mark);
    }
    for (int score = 0; score < 3; score++) ASSERT_GT(probed[score], 0);
    printf("router schemes' gradients against differences: %.1e\n", worst);
}

/* Scores far below 1, down to subnormal ones, in a token's experts or in all: what is normalized depends on the
 * differences of logits alone, so gradients are those of a softmax over them, however small the scores are and however
 * large the gradients. */
TEST(moe, router_gradients_of_tiny_scores) {
    static const tegroup_dtype types[2] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
    int64_t checked = 0;
    for (int i = 0; i < 2 * 3 * 2 * 5; i++) {
        rng r = rng_seed(4026);
        void *mark = guards_mark();
        const tegroup_dtype type = types[i & 1];
        const tegroup_score score = (tegroup_score)(i / 2 % 3);
        const int by_losses = i / 6 & 1, softmax = score == TEGROUP_SCORE_SOFTMAX;
        const double depth[5] = {-60, -80, -86, -90.5, -110},
                     none = score == TEGROUP_SCORE_SIGMOID ? -88 : softmax ? -100 : -170,
                     low = depth[i / 12] * (type == TEGROUP_DTYPE_F64 ? 8.1 : 1),
                     power = score == TEGROUP_SCORE_SQRT_SOFTPLUS ? 0.5 : 1,
                     large = type == TEGROUP_DTYPE_F64 ? 1e30 : 65536;
        const double logits[4] = {softmax ? 0 : low - 1, low, low + 0.5, softmax ? -1 : low - 2};
        double gradient[2], share[4], expected[4] = {0, 0, 0, 0}, sum = 0, mean = 0, balance = 0, z = 0;
        tegroup_router_desc f;
        if (by_losses && softmax) continue; /* whose scores are the shares */
        if (depth[i / 12] < none) continue; /* the score is 0 there */
        memset(&f, 0, sizeof f);
        f.struct_size = sizeof f;
        f.space = TEGROUP_SPACE_HOST;
        f.experts = 4;
        f.k = 2;
        f.normalize = !by_losses;
        f.logits = matrix(&r, type, 1, 4), f.probabilities = matrix(&r, type, 1, 4), f.weights = matrix(&r, type, 1, 2);
        f.indices = matrix(&r, TEGROUP_DTYPE_I32, 1, 2), f.scheme.given_indices = matrix(&r, TEGROUP_DTYPE_I32, 1, 2), f.counts = matrix(&r, TEGROUP_DTYPE_I64, 1, 4);
        f.loss_gradients = matrix(&r, TEGROUP_DTYPE_F64, 1, 5);
        f.scheme.score = score;
        f.balance_coefficient = by_losses;
        f.balance_loss = &balance, f.z_loss = &z;
        for (int e = 0; e < 4; e++) set(&f.logits, 0, e, logits[e]);
        for (int j = 0; j < 2; j++) set_whole(&f.scheme.given_indices, 0, j, 1 + j);
        ASSERT_EQ(tegroup_router(&f, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = scheme_backward_of(&f, matrix(&r, type, 1, 2), matrix(&r, type, 1, 4));
        b.loss_scale = large;
        for (int j = 0; j < 2; j++) gradient[j] = by_losses ? 0 : (j ? -0.5 : 1) * large, set(&b.grad_weights, 0, j, gradient[j]);
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        for (int e = 0; e < 4; e++) share[e] = by_losses || e == 1 || e == 2 ? exp(power * (logits[e] - low)) : 0, sum += share[e];
        /* the balance loss: 4 experts times half of the assignments each of two, times shares */
        for (int e = 0; e < 4; e++) expected[e] = by_losses ? (e == 1 || e == 2 ? 4 * 0.5 * large : 0) : e == 1 || e == 2 ? gradient[e - 1] : 0;
        for (int e = 0; e < 4; e++) mean += share[e] / sum * expected[e];
        for (int e = 0; e < 4; e++) {
            const double want = power * share[e] / sum * (expected[e] - mean);
            ASSERT_LE(fabs(at(&b.grad_logits, 0, e) - want), 1e-4 * large);
            checked++;
        }
        guards_release(mark);
    }
    ASSERT_GT(checked, 100);
}

/* What is the same however it is asked for: a scheme that says nothing new has the plain call's bits; the experts that were taken give
 * the same when they are given; and padding changes nothing for the tokens before it. */
TEST(moe, router_schemes_that_say_the_same) {
    rng r = rng_seed(4023);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        const tegroup_dtype real = i % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        const int64_t tokens = rng_int(&r, 1, 12), valid = rng_int(&r, 0, tokens);
        struct { tegroup_router_desc d; int64_t counts[SCHEME_EXPERTS]; } c;
        scheme_make(&c.d, &r, real, real, 1, tokens);
        const int kind = (int)(i % 3);
        if (kind == 0) memset(&c.d.scheme, 0, sizeof c.d.scheme);
        c.d.scheme.token_mask = NULL, c.d.scheme.valid_tokens = NULL;
        tegroup_router_desc other = c.d;
        other.probabilities = matrix(&r, real, tokens, c.d.experts), other.weights = matrix(&r, real, tokens, c.d.k), other.indices = matrix(&r, integers(&r), tokens, c.d.k);
        other.counts = matrix(&r, integers(&r), 1, c.d.experts), other.balance_loss = (double *)guarded(8);
        if (kind == 0) c.d.z_loss = NULL, memset(&c.d.loss_gradients, 0, sizeof c.d.loss_gradients), other.scheme.sequence_tokens = tokens;
        ASSERT_EQ(tegroup_router(&c.d, NULL, NULL), TEGROUP_OK);
        if (kind == 1) {
            other.scheme.given_indices = c.d.indices;
            other.scheme.n_group = other.scheme.topk_group = 0, other.scheme.group_score = TEGROUP_GROUP_SCORE_TOP2;
            memset(&other.scheme.bias, 0, sizeof other.scheme.bias);
        }
        if (kind == 2) {
            uint8_t *mask = (uint8_t *)guarded((size_t)tokens);
            int64_t *count = (int64_t *)guarded(8);
            for (int64_t t = 0; t < tokens; t++) mask[t] = t < valid;
            *count = valid;
            if (rng_chance(&r, 50)) other.scheme.token_mask = mask;
            else other.scheme.valid_tokens = count;
            for (int64_t t = valid; t < tokens; t++) for (int32_t e = 0; e < c.d.experts; e++) set(&c.d.logits, t, e, NAN); /* not read */
        }
        ASSERT_EQ(tegroup_router(&other, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < (kind == 2 ? valid : tokens); t++) {
            for (int32_t e = 0; e < c.d.experts; e++) ASSERT_EQ(at(&c.d.probabilities, t, e), at(&other.probabilities, t, e));
            for (int32_t j = 0; j < c.d.k; j++) {
                ASSERT_EQ(whole(&c.d.indices, t, j), whole(&other.indices, t, j));
                ASSERT_EQ(at(&c.d.weights, t, j), at(&other.weights, t, j));
            }
        }
        if (kind != 2) {
            for (int32_t e = 0; e < c.d.experts; e++) ASSERT_EQ(whole(&c.d.counts, 0, e), whole(&other.counts, 0, e));
            ASSERT_LE(fabs(*c.d.balance_loss - *other.balance_loss), 1e-6 * fabs(*c.d.balance_loss));
        }
        guards_release(mark);
    }
}

/* Scores that are all 0 choose the largest logits, weigh 0 and have no gradient, and nothing is divided by 0. */
TEST(moe, router_schemes_of_nothing) {
    rng r = rng_seed(4026);
    for (int i = 0; i < 40; i++) {
        void *mark = guards_mark();
        tegroup_router_desc d;
        do scheme_make(&d, &r, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, 1, 5);
        while (d.scheme.score == TEGROUP_SCORE_SOFTMAX || d.scheme.given_indices.dtype || d.scheme.bias.dtype || d.scheme.normalize_epsilon != 0 || !d.normalize);
        for (int64_t t = 0; t < 5; t++) for (int32_t e = 0; e < d.experts; e++) set(&d.logits, t, e, at(&d.logits, t, e) - 4000);
        d.scheme.z_coefficient = 0;
        ASSERT_EQ(tegroup_router(&d, NULL, NULL), TEGROUP_OK);
        tegroup_router_backward_desc b = scheme_backward_of(&d, filled(&r, TEGROUP_DTYPE_F64, 5, d.k, 1), matrix(&r, TEGROUP_DTYPE_F64, 5, d.experts));
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < 5; t++) {
            for (int32_t j = 0; j < d.k; j++) ASSERT_EQ(at(&d.weights, t, j), 0);
            for (int32_t e = 0; e < d.experts; e++) ASSERT_EQ(at(&b.grad_logits, t, e), 0);
            for (int32_t j = 1; j < d.k; j++) ASSERT_TRUE(!scheme_there(&d.scheme, t) || at(&d.logits, t, whole(&d.indices, t, j - 1)) >= at(&d.logits, t, whole(&d.indices, t, j)));
        }
        ASSERT_EQ(*d.balance_loss, 0);
        guards_release(mark);
    }
}

/* Logits and biases that are not numbers choose something, but never the same expert twice and none that does not exist. */
TEST(moe, router_schemes_survive_nan) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1, -1, 3e38};
    rng r = rng_seed(4024);
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark();
        struct { tegroup_router_desc d; int64_t counts[SCHEME_EXPERTS]; } c;
        scheme_make(&c.d, &r, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32, 1, 9);
        tegroup_router_desc *d = &c.d;
        const int given = d->scheme.given_indices.dtype != TEGROUP_DTYPE_UNSET;
        for (int64_t t = 0; t < 9; t++) for (int32_t e = 0; e < d->experts; e++) if (rng_chance(&r, 30)) set(&d->logits, t, e, odd[rng_int(&r, 0, 5)]);
        for (int32_t e = 0; d->scheme.bias.dtype && e < d->experts; e++) if (rng_chance(&r, 20)) set(&d->scheme.bias, 0, e, odd[rng_int(&r, 0, 2)]);
        ASSERT_EQ(tegroup_router(d, NULL, NULL), TEGROUP_OK);
        scheme_expert order[SCHEME_EXPERTS];
        for (int64_t t = 0; t < 9; t++) {
            if (!scheme_there(&d->scheme, t)) continue;
            scheme_sorted(&d->scheme, d->experts, &d->probabilities, &d->logits, t, order);
            for (int32_t j = 0; j < d->k; j++) ASSERT_EQ(whole(&d->indices, t, j), given ? scheme_index(&d->scheme.given_indices, t, j, d->experts) : order[j].e);
        }
        tegroup_router_backward_desc b = scheme_backward_of(d, filled(&r, TEGROUP_DTYPE_F32, 9, d->k, 1), matrix(&r, TEGROUP_DTYPE_F32, 9, d->experts));
        ASSERT_EQ(tegroup_router_backward(&b, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* ---- permutation -------------------------------------------------------------------------------------------------------- */

typedef struct routing { int64_t tokens, rows; int32_t experts, k; tegroup_permutation_desc d; } routing;

/* Random indices, some dropped or nonsense, and groups with room for fewer, as many or more than come. */
static void routing_make(routing *c, rng *r) {
    tegroup_permutation_desc *d = &c->d;
    tegroup_layout layout;
    memset(d, 0, sizeof *d);
    c->tokens = rng_int(r, 0, 40);
    c->experts = (int32_t)rng_int(r, 1, 9);
    c->k = (int32_t)rng_int(r, 1, 4);
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->indices = matrix(r, integers(r), c->tokens, c->k);
    int64_t counts[9] = {0}, sum = 0;
    for (int64_t t = 0; t < c->tokens; t++)
        for (int32_t j = 0; j < c->k; j++) {
            int64_t e = rng_chance(r, 90) ? rng_int(r, 0, c->experts - 1) : nonsense(r, d->indices.dtype, c->experts);
            set_whole(&d->indices, t, j, e);
            if (e >= 0 && e < c->experts) counts[e]++;
        }
    int policy = (int)rng_int(r, 0, 2); /* exact counts, a capacity, or room to spare */
    for (int32_t e = 0; e < c->experts; e++) {
        if (policy == 1) counts[e] = rng_int(r, 0, counts[e] + 1);
        if (policy == 2) counts[e] += rng_int(r, 0, 3);
        sum += counts[e];
    }
    const void *listed = index_array(TEGROUP_DTYPE_I64, counts, c->experts);
    tegroup_sizes sizes = tegroup_sizes_of(listed, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    if (rng_chance(r, 30)) { sizes.alignment = 4; sum += 4 * c->experts; }
    c->rows = sum + rng_int(r, 0, 5);
    d->shape = tegroup_shape_of(c->experts, c->rows, 1, sizes);
    d->row_of_slot = matrix(r, integers(r), c->tokens, c->k);
    d->slot_of_row = matrix(r, integers(r), 1, c->rows);
    if (tegroup_snapshot_layout(&d->shape, &layout, NULL) != TEGROUP_OK) abort();
    void *snapshot = guarded(layout.total_bytes);
    if (tegroup_shape_prepare(&d->shape, snapshot, layout.total_bytes, NULL, NULL) != TEGROUP_OK) abort();
}

TEST(moe, permutation) {
    rng r = rng_seed(4005);
    int64_t overflowed = 0, dropped = 0, placed = 0, weighed = 0;
    for (int64_t i = scaled(800); i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        routing_make(&c, &r);
        const int weighs = rng_chance(&r, 50);
        if (weighs) c.d.slot_weights = filled(&r, rng_chance(&r, 50) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, c.tokens, c.k, 1);
        if (weighs) c.d.row_weights = matrix(&r, c.d.slot_weights.dtype, 1, c.rows);
        for (int64_t row = 0; row < c.rows && weighs; row++) set(&c.d.row_weights, 0, row, -7);
        remember_all(mark);
        ASSERT_EQ(tegroup_permutation_make(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_snapshot_view v = tegroup_snapshot_read(c.d.shape.snapshot);
        int64_t next[9] = {0}, *slot_of_row = (int64_t *)scratch((size_t)c.rows * 8 + 8);
        for (int64_t row = 0; row < c.rows; row++) slot_of_row[row] = -1;
        for (int64_t slot = 0; slot < c.tokens * c.k; slot++) { /* slots in order take the rows of their group in order */
            int64_t e = whole(&c.d.indices, slot / c.k, slot % c.k);
            int64_t row = -1;
            if (e < 0 || e >= c.experts) dropped++;
            else if (next[e] >= v.rows[e]) overflowed++;
            else { row = v.start[e] + next[e]++; slot_of_row[row] = slot; placed++; }
            ASSERT_EQ(whole(&c.d.row_of_slot, slot / c.k, slot % c.k), row);
        }
        for (int64_t row = 0; row < c.rows; row++) ASSERT_EQ(whole(&c.d.slot_of_row, 0, row), slot_of_row[row]);
        for (int64_t row = 0; row < c.rows && weighs; row++) {
            const int64_t slot = slot_of_row[row];
            ASSERT_TRUE(at(&c.d.row_weights, 0, row) == (slot < 0 ? -7 : at(&c.d.slot_weights, slot / c.k, slot % c.k)));
            weighed += slot >= 0;
        }
        may_change(&c.d.row_of_slot); may_change(&c.d.slot_of_row); may_change(&c.d.row_weights);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(overflowed > 0 && dropped > 0 && placed > 0 && weighed > 0);
}

/* The snapshot may be made with the permutation: it is prepare's, with clamp, of how many slots name each expert. */
TEST(moe, permutation_prepares) {
    rng r = rng_seed(4028);
    int64_t clamped = 0, padded = 0, weighted = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        tegroup_layout layout;
        routing_make(&c, &r);
        int64_t counts[9] = {0};
        for (int64_t slot = 0; slot < c.tokens * c.k; slot++) {
            const int64_t e = whole(&c.d.indices, slot / c.k, slot % c.k);
            if (e >= 0 && e < c.experts) counts[e]++;
        }
        c.rows = rng_chance(&r, 40) ? rng_int(&r, 0, c.rows) : c.rows;
        c.d.shape.rows = c.d.slot_of_row.cols = c.rows;
        if (rng_chance(&r, 30)) c.d.weights = filled(&r, TEGROUP_DTYPE_F32, c.tokens, c.k, 1), weighted++;
        tegroup_permutation_desc one = c.d, two = c.d;
        ASSERT_EQ(tegroup_snapshot_layout(&c.d.shape, &layout, NULL), TEGROUP_OK);
        one.row_of_slot = matrix(&r, c.d.row_of_slot.dtype, c.tokens, c.k);
        one.slot_of_row = matrix(&r, c.d.slot_of_row.dtype, 1, c.rows);
        one.snapshot = guarded(layout.total_bytes);
        one.snapshot_bytes = layout.total_bytes;
        one.shape.snapshot = rng_chance(&r, 50) ? one.snapshot : NULL;
        one.shape.row_sizes.data = NULL;
        void *snapshot = guarded(layout.total_bytes);
        two.shape.row_sizes.data = counts, two.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
        tegroup_prepare_desc prepare = {.struct_size = sizeof prepare, .space = TEGROUP_SPACE_HOST, .shape = two.shape, .snapshot = snapshot, .snapshot_bytes = layout.total_bytes, .clamp = 1};
        ASSERT_EQ(tegroup_prepare(&prepare, NULL, NULL), TEGROUP_OK);
        two.shape.snapshot = snapshot;
        ASSERT_EQ(tegroup_permutation_make(&two, NULL, NULL), TEGROUP_OK);
        remember_all(mark);
        ASSERT_EQ(tegroup_permutation_make(&one, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(memcmp(one.snapshot, snapshot, layout.total_bytes), 0);
        for (int64_t slot = 0; slot < c.tokens * c.k; slot++)
            ASSERT_EQ(whole(&one.row_of_slot, slot / c.k, slot % c.k), whole(&two.row_of_slot, slot / c.k, slot % c.k));
        for (int64_t row = 0; row < c.rows; row++) ASSERT_EQ(whole(&one.slot_of_row, 0, row), whole(&two.slot_of_row, 0, row));
        clamped += (tegroup_snapshot_read(snapshot).header->status & TEGROUP_SNAPSHOT_CAPACITY) != 0;
        padded += two.shape.row_sizes.alignment > 1;
        may_change(&one.row_of_slot); may_change(&one.slot_of_row);
        tegroup_matrix made = tegroup_matrix_of(one.snapshot, 1, (int64_t)layout.total_bytes, TEGROUP_DTYPE_F8E4M3);
        may_change(&made);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(clamped > 0 && padded > 0 && weighted > 0);
}

/* A full group keeps the slots of the largest weights, in their order, whoever comes first; of equal weights the first, and NaN last. */
TEST(moe, permutation_keeps_the_heaviest) {
    rng r = rng_seed(4027);
    int64_t dropped = 0, equal = 0;
    for (int64_t i = scaled(800); i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        routing_make(&c, &r);
        const int few = rng_chance(&r, 50);
        c.d.weights = filled(&r, rng_chance(&r, 50) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, c.tokens, c.k, 1);
        for (int64_t slot = 0; slot < c.tokens * c.k; slot++)
            if (!few && i % 2) set(&c.d.weights, slot / c.k, slot % c.k, 1 + 0x1p-40 * (double)rng_int(&r, 0, 99)); /* no float tells them apart */
            else if (few) set(&c.d.weights, slot / c.k, slot % c.k, rng_chance(&r, 10) ? (double)NAN : rng_chance(&r, 10) ? -0.0 : 0.25 * (double)rng_int(&r, -1, 2));
        remember_all(mark);
        ASSERT_EQ(tegroup_permutation_make(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_snapshot_view v = tegroup_snapshot_read(c.d.shape.snapshot);
        int64_t next[9] = {0};
        for (int64_t slot = 0; slot < c.tokens * c.k; slot++) {
            const int64_t e = whole(&c.d.indices, slot / c.k, slot % c.k);
            const double w = at(&c.d.weights, slot / c.k, slot % c.k);
            int64_t better = 0, row = -1;
            if (e >= 0 && e < c.experts) {
                for (int64_t other = 0; other < c.tokens * c.k; other++) {
                    const double x = at(&c.d.weights, other / c.k, other % c.k);
                    if (other == slot || whole(&c.d.indices, other / c.k, other % c.k) != e) continue;
                    const int same = x == w || (isnan(x) && isnan(w));
                    better += same ? other < slot : isnan(w) || x > w;
                    equal += same;
                }
                if (better < v.rows[e]) row = v.start[e] + next[e]++;
                else dropped++;
            }
            ASSERT_EQ(whole(&c.d.row_of_slot, slot / c.k, slot % c.k), row);
            if (row >= 0) ASSERT_EQ(whole(&c.d.slot_of_row, 0, row), slot);
        }
        int64_t rows = 0;
        for (int64_t row = 0; row < c.rows; row++) rows += whole(&c.d.slot_of_row, 0, row) >= 0;
        for (int32_t e = 0; e < c.experts; e++) rows -= next[e];
        ASSERT_EQ(rows, 0);
        may_change(&c.d.row_of_slot); may_change(&c.d.slot_of_row);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(dropped > 0 && equal > 0);
}

static double weight_at(const tegroup_matrix *w, int64_t t, int64_t j) { return w->dtype == TEGROUP_DTYPE_UNSET ? 1 : at(w, t, j); }

TEST(moe, permute_and_combine) {
    rng r = rng_seed(4006);
    for (int64_t i = scaled(800); i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        routing_make(&c, &r);
        ASSERT_EQ(tegroup_permutation_make(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_dtype dtype = dtypes[rng_int(&r, 0, 3)], wide = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        /* rows are worked on by pieces of 256 */
        int64_t width = i % 8 == 0 ? rng_int(&r, 250, 600) : rng_int(&r, 0, 33);
        double u = unit_roundoff(wide);
        int weighted = rng_chance(&r, 50);
        tegroup_matrix weights = weighted ? filled(&r, wide, c.tokens, c.k, 1) : no_matrix();

        tegroup_permute_desc p = {.struct_size = sizeof p, .space = TEGROUP_SPACE_HOST, .k = c.k, .tokens = filled(&r, dtype, c.tokens, width, 1),
                                  .slot_of_row = c.d.slot_of_row, .weights = weights, .permuted = matrix(&r, dtype, c.rows, width)};
        if (rng_chance(&r, 50)) p.slot_of_row = no_matrix(), p.row_of_slot = c.d.row_of_slot;
        remember_all(mark);
        ASSERT_EQ(tegroup_permute(&p, NULL, NULL), TEGROUP_OK);
        for (int64_t row = 0; row < c.rows; row++) {
            int64_t slot = whole(&c.d.slot_of_row, 0, row);
            if (slot < 0) continue;
            for (int64_t j = 0; j < width; j++) {
                double x = at(&p.tokens, slot / c.k, j), want = weight_at(&weights, slot / c.k, slot % c.k) * x;
                if (!weighted) ASSERT_EQ(at(&p.permuted, row, j), x);
                else ASSERT_TRUE(within(at(&p.permuted, row, j), want, 2 * u * fabs(want) + stored(dtype, want), &worst_permute));
            }
            may_change_row(&p.permuted, row);
        }
        ASSERT_EQ(disturbed(mark), 0); /* rows without a slot as they were */

        /* those rows are poison, which must not leak into the sums */
        tegroup_combine_desc q = {.struct_size = sizeof q, .space = TEGROUP_SPACE_HOST, .permuted = p.permuted, .row_of_slot = c.d.row_of_slot,
                                  .weights = weights, .tokens = matrix(&r, dtype, c.tokens, width), .accumulate = (int32_t)rng_int(&r, 0, 1)};
        double *held = (double *)calloc((size_t)(c.tokens * width) + 1, 8); /* what the sums begin with */
        for (int64_t n = 0; q.accumulate && n < c.tokens * width; n++) {
            set(&q.tokens, n / width, n % width, rng_normal(&r));
            held[n] = at(&q.tokens, n / width, n % width);
        }
        remember_all(mark);
        ASSERT_EQ(tegroup_combine(&q, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < c.tokens; t++)
            for (int64_t j = 0; j < width; j++) {
                double want = held[t * width + j], size = fabs(want);
                for (int32_t s = 0; s < c.k; s++) {
                    int64_t row = whole(&c.d.row_of_slot, t, s);
                    if (row < 0) continue;
                    want += weight_at(&weights, t, s) * at(&q.permuted, row, j);
                    size += fabs(weight_at(&weights, t, s) * at(&q.permuted, row, j));
                }
                ASSERT_TRUE(within(at(&q.tokens, t, j), want, (c.k + 2) * u * size + stored(dtype, want), &worst_permute));
            }
        may_change(&q.tokens);
        ASSERT_EQ(disturbed(mark), 0);
        free(held);

        tegroup_combine_backward_desc b = {.struct_size = sizeof b, .space = TEGROUP_SPACE_HOST, .grad_tokens = filled(&r, dtype, c.tokens, width, 1),
            .permuted = q.permuted, .row_of_slot = c.d.row_of_slot, .weights = weights, .grad_permuted = matrix(&r, dtype, c.rows, width),
            .grad_weights = rng_chance(&r, 70) ? matrix(&r, wide, c.tokens, c.k) : no_matrix()};
        if (b.grad_weights.dtype == TEGROUP_DTYPE_UNSET) b.permuted = no_matrix();
        remember_all(mark);
        ASSERT_EQ(tegroup_combine_backward(&b, NULL, NULL), TEGROUP_OK);
        for (int64_t t = 0; t < c.tokens; t++)
            for (int32_t s = 0; s < c.k; s++) {
                int64_t row = whole(&c.d.row_of_slot, t, s);
                double dot = 0, size = 0;
                for (int64_t j = 0; j < width && row >= 0; j++) {
                    double g = at(&b.grad_tokens, t, j), want = weight_at(&weights, t, s) * g;
                    ASSERT_TRUE(within(at(&b.grad_permuted, row, j), want, 2 * u * fabs(want) + stored(dtype, want), &worst_permute));
                    dot += g * at(&q.permuted, row, j);
                    size += fabs(g * at(&q.permuted, row, j));
                }
                if (row >= 0) may_change_row(&b.grad_permuted, row);
                if (b.grad_weights.dtype != TEGROUP_DTYPE_UNSET)
                    ASSERT_TRUE(within(at(&b.grad_weights, t, s), dot, (double)(width + 2) * u * size + 1e-300, &worst_permute));
            }
        if (b.grad_weights.dtype != TEGROUP_DTYPE_UNSET) may_change(&b.grad_weights);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    printf("permute and combine: error/bound at most %.3f\n", worst_permute);
}

/* ---- layouts of other libraries ----------------------------------------------------------------------------------------- */

/* Groups of rows in one of the ways in which buffers hold them, and where each of them must lie. */
typedef struct placed { tegroup_shape shape; int64_t start[24], rows[24], block; int32_t groups; } placed;

/* kind: 0 packed, 1 aligned to a block, 2 at a stride, 3 anywhere in any order. */
static void placed_make(placed *p, rng *r, int kind, int32_t groups, const int64_t *rows) {
    const tegroup_dtype dtype = integers(r);
    int64_t most = 1, end = 0;
    tegroup_layout layout;
    memset(p, 0, sizeof *p);
    p->groups = groups;
    p->block = rng_chance(r, 30) ? 1 : rng_int(r, 2, 8);
    for (int32_t g = 0; g < groups; g++) { p->rows[g] = rows[g]; if (rows[g] > most) most = rows[g]; }
    const int64_t stride = most + rng_int(r, 0, 3);
    for (int32_t i = 0; i < groups; i++) {
        const int32_t g = kind == 3 ? (i * 5 + 2) % groups : i; /* of 1 to 4 groups, or of a number that 5 does not divide */
        const int64_t here = rows[g] > 0 ? rows[g] : 0;
        p->start[g] = kind == 2 ? g * stride : end;
        end = kind == 1 ? end + (here + p->block - 1) / p->block * p->block : kind == 2 ? (g + 1) * stride : end + here + (kind == 3 ? rng_int(r, 0, 3) : 0);
    }
    tegroup_sizes sizes = tegroup_sizes_of(index_array(dtype, rows, groups), dtype, TEGROUP_SPACE_HOST);
    if (kind == 1) sizes.alignment = p->block;
    if (kind == 2) sizes.stride = stride;
    if (kind == 3) sizes.starts = index_array(dtype, p->start, groups);
    p->shape = tegroup_shape_of(groups, end + rng_int(r, 0, 9), 1, sizes);
    ASSERT_EQ(tegroup_snapshot_layout(&p->shape, &layout, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_shape_prepare(&p->shape, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
}
static int32_t some_rows(rng *r, int64_t *rows) {
    int32_t groups = (int32_t)rng_int(r, 0, 23);
    groups += groups > 4 && groups % 5 == 0;
    for (int32_t g = 0; g < groups; g++) rows[g] = rng_chance(r, 20) ? 0 : rng_chance(r, 10) ? -1 : rng_int(r, 1, 9);
    return groups;
}
/* The group that owns a row, and which of its rows it is. */
static int32_t owner(const placed *p, int64_t row, int64_t *i) {
    for (int32_t g = 0; g < p->groups; g++)
        if (row >= p->start[g] && row < p->start[g] + p->rows[g]) return *i = row - p->start[g], g;
    return -1;
}
static tegroup_matrix maybe(rng *r, tegroup_dtype dtype, int64_t cols) { return rng_chance(r, 70) ? matrix(r, dtype, 1, cols) : no_matrix(); }
#define THERE(m) ((m).dtype != TEGROUP_DTYPE_UNSET)

TEST(moe, exports_of_a_snapshot) {
    rng r = rng_seed(4041);
    int64_t owned = 0, padding = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[24];
        const int32_t groups = some_rows(&r, rows);
        placed to, from;
        placed_make(&to, &r, (int)(i % 4), groups, rows);
        for (int32_t g = 0; g < groups; g++) if (rng_chance(&r, 10)) rows[g] = rng_int(&r, 0, 5); /* the other buffer may hold more or less */
        placed_make(&from, &r, (int)rng_int(&r, 0, 3), groups, rows);
        ASSERT_PASSING();
        const int64_t n = to.shape.rows, block = to.block, slots = rng_int(&r, 0, 30);
        tegroup_export_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .shape = to.shape, .block = block > 1 || rng_chance(&r, 50) ? block : 0,
                                 .counts = matrix(&r, integers(&r), 1, groups), .offsets = maybe(&r, integers(&r), groups + 1), .ends = maybe(&r, integers(&r), groups),
                                 .labels = maybe(&r, integers(&r), (n + block - 1) / block), .sorted_ids = maybe(&r, integers(&r), n), .source_rows = maybe(&r, integers(&r), n)};
        if (THERE(d.sorted_ids)) {
            d.slots = slots;
            d.slot_of_row = matrix(&r, integers(&r), 1, n);
            for (int64_t row = 0; row < n; row++)
                set_whole(&d.slot_of_row, 0, row, slots > 0 && rng_chance(&r, 60) ? rng_int(&r, 0, slots - 1) : nonsense(&r, d.slot_of_row.dtype, (int32_t)slots));
        }
        if (THERE(d.source_rows)) d.from = from.shape;
        remember_all(mark);
        ASSERT_EQ(tegroup_export(&d, NULL, NULL), TEGROUP_OK);
        for (int32_t g = 0; g < groups; g++) {
            const int64_t here = to.rows[g] > 0 ? to.rows[g] : 0;
            ASSERT_EQ(whole(&d.counts, 0, g), to.rows[g]);
            if (THERE(d.offsets)) ASSERT_EQ(whole(&d.offsets, 0, g), to.start[g]);
            if (THERE(d.ends)) ASSERT_EQ(whole(&d.ends, 0, g), to.start[g] + here);
            if (THERE(d.offsets) && g == groups - 1) ASSERT_EQ(whole(&d.offsets, 0, groups), (to.start[g] + here + block - 1) / block * block);
        }
        if (THERE(d.offsets) && groups == 0) ASSERT_EQ(whole(&d.offsets, 0, 0), 0);
        for (int64_t row = 0; row < n; row++) {
            int64_t which = 0;
            const int32_t g = owner(&to, row, &which);
            owned += g >= 0, padding += g < 0;
            if (THERE(d.labels) && row % block == 0) ASSERT_EQ(whole(&d.labels, 0, row / block), g);
            if (THERE(d.source_rows)) ASSERT_EQ(whole(&d.source_rows, 0, row), g >= 0 && which < from.rows[g] ? from.start[g] + which : -1);
            if (THERE(d.sorted_ids)) {
                const int64_t slot = whole(&d.slot_of_row, 0, row);
                ASSERT_EQ(whole(&d.sorted_ids, 0, row), slot >= 0 && slot < slots ? slot : slots);
            }
        }
        tegroup_matrix *written[] = {&d.counts, &d.offsets, &d.ends, &d.labels, &d.sorted_ids, &d.source_rows};
        for (int j = 0; j < 6; j++) if (THERE(*written[j])) may_change(written[j]);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(owned > 0 && padding > 0);
}

/* Every array that says where groups lie is read back as the same groups, and rows that move into another layout come back. */
TEST(moe, exports_are_read_back) {
    rng r = rng_seed(4042);
    int64_t moved = 0;
    for (int64_t i = scaled(400); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[24];
        const int32_t groups = some_rows(&r, rows);
        const int kind = (int)(i % 4);
        placed to, from;
        placed_make(&to, &r, kind, groups, rows);
        placed_make(&from, &r, (int)rng_int(&r, 0, 3), groups, rows);
        ASSERT_PASSING();
        const int64_t n = to.shape.rows;
        tegroup_export_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .shape = to.shape, .counts = matrix(&r, TEGROUP_DTYPE_I32, 1, groups),
                                 .offsets = matrix(&r, TEGROUP_DTYPE_I32, 1, groups + 1), .ends = matrix(&r, TEGROUP_DTYPE_I32, 1, groups),
                                 .labels = matrix(&r, TEGROUP_DTYPE_I32, 1, n), .from = from.shape, .source_rows = matrix(&r, integers(&r), 1, n)};
        ASSERT_EQ(tegroup_export(&d, NULL, NULL), TEGROUP_OK);
        tegroup_count_desc c = {.struct_size = sizeof c, .space = TEGROUP_SPACE_HOST, .groups = groups, .labels = d.labels,
                                .counts = matrix(&r, TEGROUP_DTYPE_I32, 1, groups), .starts = matrix(&r, TEGROUP_DTYPE_I32, 1, groups)};
        ASSERT_EQ(tegroup_count(&c, NULL, NULL), TEGROUP_OK);
        for (int way = 0; way < 4; way++) { /* counts and starts, offsets, ends, labels */
            tegroup_sizes sizes = tegroup_sizes_of(way == 1 ? d.offsets.data : way == 2 ? d.ends.data : way == 3 ? c.counts.data : d.counts.data, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST);
            if (way == 0) sizes.starts = d.offsets.data; /* its first numbers */
            if (way == 1) sizes.encoding = TEGROUP_ENCODING_OFFSETS;
            if (way == 2) sizes.encoding = TEGROUP_ENCODING_ENDS, sizes.alignment = kind == 1 ? to.block : 0;
            if (way == 3) sizes.starts = c.starts.data;
            if ((way == 1 && kind != 0) || (way == 2 && kind > 1)) continue; /* these know no gaps, or only those of an alignment */
            tegroup_shape shape = tegroup_shape_of(groups, n, 1, sizes);
            tegroup_layout layout;
            ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
            ASSERT_EQ(tegroup_shape_prepare(&shape, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
            const tegroup_snapshot_view v = tegroup_snapshot_read(shape.snapshot);
            for (int32_t g = 0; g < groups; g++) {
                ASSERT_EQ(v.rows[g], way > 0 && rows[g] < 0 ? 0 : rows[g]);
                if (rows[g] > 0) ASSERT_EQ(v.start[g], to.start[g]);
            }
        }
        tegroup_matrix a = matrix(&r, TEGROUP_DTYPE_F8E8M0, from.shape.rows, rng_int(&r, 1, 9)), b = matrix(&r, a.dtype, n, a.cols), again = matrix(&r, a.dtype, a.rows, a.cols);
        for (int64_t row = 0; row < a.rows; row++) for (int64_t j = 0; j < a.cols; j++) ((unsigned char *)a.data)[place(&a, row, j)] = (unsigned char)rng_next(&r);
        tegroup_permute_desc p = {.struct_size = sizeof p, .space = TEGROUP_SPACE_HOST, .k = 1, .tokens = a, .slot_of_row = d.source_rows, .permuted = b};
        tegroup_export_desc back = {.struct_size = sizeof back, .space = TEGROUP_SPACE_HOST, .shape = from.shape, .from = to.shape, .source_rows = matrix(&r, integers(&r), 1, a.rows)};
        ASSERT_EQ(tegroup_permute(&p, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_export(&back, NULL, NULL), TEGROUP_OK);
        p.tokens = b, p.slot_of_row = back.source_rows, p.permuted = again;
        ASSERT_EQ(tegroup_permute(&p, NULL, NULL), TEGROUP_OK);
        for (int32_t g = 0; g < groups; g++)
            for (int64_t row = 0; row < rows[g]; row++, moved++) {
                const char *was = (char *)a.data + place(&a, from.start[g] + row, 0);
                ASSERT_EQ(memcmp(was, (char *)b.data + place(&b, to.start[g] + row, 0), (size_t)a.cols), 0);
                ASSERT_EQ(memcmp(was, (char *)again.data + place(&again, from.start[g] + row, 0), (size_t)a.cols), 0);
            }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_GT(moved, 0);
}

/* moe_align_block_size as vLLM documents it, by plain loops: an expert's slots in order, filled up to whole blocks with a number
 * that is no slot, and each block's expert. From there back to counts, starts and the row of each slot. */
TEST(moe, sorted_token_ids) {
    rng r = rng_seed(4043);
    int64_t filled_up = 0, garbage = 0;
    for (int64_t i = scaled(400); i > 0; i--) {
        void *mark = guards_mark();
        const int32_t experts = (int32_t)rng_int(&r, 1, 12), k = (int32_t)rng_int(&r, 1, 4);
        const int64_t tokens = rng_int(&r, 0, 40), slots = tokens * k, block = rng_int(&r, 1, 9), blocks = (slots + experts * (block - 1) + block - 1) / block, n = rng_chance(&r, 50) ? blocks * block : slots + experts * (block - 1);
        int64_t *ids = (int64_t *)scratch(8 * (size_t)n + 8), *expert_ids = (int64_t *)scratch(8 * (size_t)blocks + 8), rows = 0, counts[12], starts[12];
        tegroup_matrix indices = matrix(&r, integers(&r), tokens, k);
        for (int64_t s = 0; s < slots; s++) set_whole(&indices, s / k, s % k, rng_int(&r, 0, rng_chance(&r, 50) ? experts - 1 : experts / 4));
        for (int64_t row = 0; row < n; row++) ids[row] = slots;
        for (int64_t b = 0; b < blocks; b++) expert_ids[b] = -1;
        for (int32_t e = 0; e < experts; e++) {
            counts[e] = 0, starts[e] = rows;
            for (int64_t s = 0; s < slots; s++) if (whole(&indices, s / k, s % k) == e) ids[rows++] = s, counts[e]++;
            for (; rows % block != 0; rows++) filled_up++;
            for (int64_t b = starts[e] / block; b < rows / block; b++) expert_ids[b] = e;
        }
        tegroup_sizes sizes = tegroup_sizes_of(index_array(TEGROUP_DTYPE_I64, counts, experts), TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
        sizes.alignment = block;
        tegroup_shape shape = tegroup_shape_of(experts, n, 1, sizes);
        tegroup_layout layout;
        ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_shape_prepare(&shape, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
        tegroup_permutation_desc m = {.struct_size = sizeof m, .space = TEGROUP_SPACE_HOST, .indices = indices, .shape = shape, .row_of_slot = matrix(&r, integers(&r), tokens, k), .slot_of_row = matrix(&r, integers(&r), 1, n)};
        ASSERT_EQ(tegroup_permutation_make(&m, NULL, NULL), TEGROUP_OK);
        tegroup_export_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .shape = shape, .block = block, .offsets = matrix(&r, integers(&r), 1, experts + 1),
                                 .labels = matrix(&r, integers(&r), 1, (n + block - 1) / block), .slot_of_row = m.slot_of_row, .slots = slots, .sorted_ids = matrix(&r, integers(&r), 1, n)};
        ASSERT_EQ(tegroup_export(&d, NULL, NULL), TEGROUP_OK);
        for (int64_t row = 0; row < n; row++) ASSERT_EQ(whole(&d.sorted_ids, 0, row), ids[row]);
        for (int64_t b = 0; b < d.labels.cols; b++) ASSERT_EQ(whole(&d.labels, 0, b), expert_ids[b]);
        ASSERT_EQ(whole(&d.offsets, 0, experts), rows);
        for (int64_t row = rows; row < n; row++, garbage++) { /* what is behind the padding nobody has written */
            set_whole(&d.sorted_ids, 0, row, rng_int(&r, 0, slots));
            set_whole(&d.labels, 0, row / block, rng_int(&r, 0, experts - 1));
        }
        tegroup_count_desc c = {.struct_size = sizeof c, .space = TEGROUP_SPACE_HOST, .groups = experts, .labels = d.labels, .block = block, .slot_of_row = d.sorted_ids,
                                .counts = matrix(&r, integers(&r), 1, experts), .starts = maybe(&r, integers(&r), experts), .padded_rows = matrix(&r, integers(&r), 1, 1), .row_of_slot = matrix(&r, integers(&r), tokens, k)};
        set_whole(&c.padded_rows, 0, 0, rows);
        remember_all(mark);
        ASSERT_EQ(tegroup_count(&c, NULL, NULL), TEGROUP_OK);
        for (int32_t e = 0; e < experts; e++) {
            ASSERT_EQ(whole(&c.counts, 0, e), counts[e]);
            if (THERE(c.starts)) ASSERT_EQ(whole(&c.starts, 0, e), counts[e] > 0 ? starts[e] : 0);
        }
        for (int64_t s = 0; s < slots; s++) ASSERT_EQ(whole(&c.row_of_slot, s / k, s % k), whole(&m.row_of_slot, s / k, s % k));
        may_change(&c.counts), may_change(&c.row_of_slot);
        if (THERE(c.starts)) may_change(&c.starts);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(filled_up > 0 && garbage > 0);
}

/* Ids, labels and lengths that lie are nobody's, and a snapshot that was written over leads nowhere outside. */
TEST(moe, layouts_that_lie) {
    rng r = rng_seed(4044);
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[24];
        const int32_t groups = some_rows(&r, rows), k = (int32_t)rng_int(&r, 1, 4);
        const int64_t n = rng_int(&r, 0, 60), tokens = rng_int(&r, 0, 12), slots = tokens * k, block = rng_int(&r, 1, 5);
        tegroup_count_desc c = {.struct_size = sizeof c, .space = TEGROUP_SPACE_HOST, .groups = groups, .labels = matrix(&r, integers(&r), 1, (n + block - 1) / block), .block = block, .slot_of_row = matrix(&r, integers(&r), 1, n),
                                .counts = matrix(&r, integers(&r), 1, groups), .offsets = maybe(&r, integers(&r), groups + 1), .starts = maybe(&r, integers(&r), groups), .padded_rows = maybe(&r, integers(&r), 1), .row_of_slot = matrix(&r, integers(&r), tokens, k)};
        int64_t want_counts[24] = {0}, first[24], row_of[64], used = n, before = 0;
        for (int64_t b = 0; b < c.labels.cols; b++) set_whole(&c.labels, 0, b, groups > 0 && rng_chance(&r, 80) ? rng_int(&r, 0, groups - 1) : nonsense(&r, c.labels.dtype, groups));
        for (int64_t row = 0; row < n; row++) set_whole(&c.slot_of_row, 0, row, slots > 0 && rng_chance(&r, 80) ? rng_int(&r, 0, slots - 1) : nonsense(&r, c.slot_of_row.dtype, (int32_t)slots));
        if (THERE(c.padded_rows)) set_whole(&c.padded_rows, 0, 0, used = rng_chance(&r, 40) ? nonsense(&r, c.padded_rows.dtype, (int32_t)n) : rng_int(&r, 0, n));
        for (int32_t g = 0; g < groups; g++) first[g] = 0;
        for (int64_t s = 0; s < slots; s++) row_of[s] = -1;
        for (int64_t row = n - 1; row >= 0; row--) {
            const int64_t g = whole(&c.labels, 0, row / block), s = whole(&c.slot_of_row, 0, row);
            if (row >= used || g < 0 || g >= groups || s < 0 || s >= slots) continue;
            want_counts[g]++, first[g] = row;
            if (row_of[s] < 0) row_of[s] = row; /* of several the last */
        }
        remember_all(mark);
        ASSERT_EQ(tegroup_count(&c, NULL, NULL), TEGROUP_OK);
        for (int32_t g = 0; g < groups; g++) {
            ASSERT_EQ(whole(&c.counts, 0, g), want_counts[g]);
            if (THERE(c.starts)) ASSERT_EQ(whole(&c.starts, 0, g), first[g]);
            if (THERE(c.offsets)) ASSERT_EQ(whole(&c.offsets, 0, g), before);
            before += want_counts[g];
        }
        for (int64_t s = 0; s < slots; s++) ASSERT_EQ(whole(&c.row_of_slot, s / k, s % k), row_of[s]);
        tegroup_matrix *written[] = {&c.counts, &c.offsets, &c.starts, &c.row_of_slot};
        for (int j = 0; j < 4; j++) if (THERE(*written[j])) may_change(written[j]);
        ASSERT_EQ(disturbed(mark), 0);

        placed to;
        placed_make(&to, &r, (int)rng_int(&r, 0, 3), groups, rows);
        ASSERT_PASSING();
        tegroup_snapshot_view v = tegroup_snapshot_read(to.shape.snapshot);
        for (int32_t g = 0; g < groups; g++) {
            if (rng_chance(&r, 40)) *(int64_t *)(uintptr_t)(v.start + g) = nonsense(&r, TEGROUP_DTYPE_I64, 1000);
            if (rng_chance(&r, 40)) *(int64_t *)(uintptr_t)(v.rows + g) = nonsense(&r, TEGROUP_DTYPE_I64, 1000);
        }
        const int64_t most = to.shape.rows;
        tegroup_export_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .shape = to.shape, .block = block, .counts = matrix(&r, integers(&r), 1, groups), .labels = matrix(&r, integers(&r), 1, (most + block - 1) / block),
                                 .from = to.shape, .source_rows = matrix(&r, integers(&r), 1, most)};
        remember_all(mark);
        ASSERT_EQ(tegroup_export(&d, NULL, NULL), TEGROUP_OK);
        for (int32_t g = 0; g < groups; g++) ASSERT_TRUE(whole(&d.counts, 0, g) >= -1 && whole(&d.counts, 0, g) <= most);
        for (int64_t row = 0; row < most; row++) ASSERT_TRUE(whole(&d.source_rows, 0, row) >= -1 && whole(&d.source_rows, 0, row) < most);
        may_change(&d.counts), may_change(&d.labels), may_change(&d.source_rows);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
}

/* The report against plain loops over what the groups were made of. */
static void check_skew(const tegroup_skew *skew, const int64_t *rows, int32_t groups, int64_t tile, int64_t bytes) {
    int64_t all = 0, most = 0, tiles = 0, sorted[896] = {0};
    int32_t skipped = 0, empty = 0, largest = -1, counted = 0;
    for (int32_t g = 0; g < groups; g++) {
        if (rows[g] < 0) { skipped++; continue; }
        int32_t at = counted++; /* by insertion */
        for (; at > 0 && sorted[at - 1] > rows[g]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = rows[g];
        empty += rows[g] == 0, all += rows[g], tiles += (rows[g] + tile - 1) / tile;
        if (rows[g] > most) most = rows[g], largest = g;
    }
    ASSERT_EQ(skew->groups, groups);
    ASSERT_EQ(skew->skipped, skipped);
    ASSERT_EQ(skew->empty, empty);
    ASSERT_EQ(skew->largest, largest);
    ASSERT_EQ(skew->rows, all);
    ASSERT_EQ(skew->rows_max, most);
    ASSERT_EQ(skew->rows_min, counted > 0 ? sorted[0] : 0);
    ASSERT_EQ(skew->rows_median, counted > 0 ? sorted[(counted - 1) / 2] : 0);
    ASSERT_EQ(skew->tiles, tiles);
    ASSERT_EQ(skew->wasted_rows, tiles * tile - all);
    ASSERT_EQ(skew->bytes, all * bytes);
    ASSERT_EQ(skew->wasted_bytes, (tiles * tile - all) * bytes);
    ASSERT_LE(fabs(skew->largest_over_mean - (all > 0 ? (double)most * counted / (double)all : 0)), 1e-12);
}

TEST(moe, skew_of_a_routing) {
    rng r = rng_seed(4045);
    char text[400];
    for (int64_t i = scaled(300) + 4; i > 0; i--) {
        void *mark = guards_mark();
        const int many = i % 50 == 4;
        const int32_t groups = many ? 896 : (int32_t)rng_int(&r, 0, 40);
        int64_t rows[896], n = 0;
        tegroup_layout layout;
        for (int32_t g = 0; g < groups; g++) rows[g] = rng_chance(&r, 20) ? 0 : rng_chance(&r, 10) ? -1 : rng_int(&r, 1, rng_chance(&r, 5) ? 3000 : 70), n += rows[g] > 0 ? rows[g] : 0;
        tegroup_shape shape = tegroup_shape_of(groups, n + rng_int(&r, 0, 9), 1, tegroup_sizes_of(index_array(TEGROUP_DTYPE_I64, rows, groups), TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
        ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_shape_prepare(&shape, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
        tegroup_skew *result = (tegroup_skew *)guarded(sizeof *result);
        tegroup_skew_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .shape = shape, .tile_rows = rng_int(&r, 1, 200), .row_bytes = rng_int(&r, 0, 9000), .result = result};
        remember_all(mark);
        ASSERT_EQ(tegroup_skew_report(&d, NULL, NULL), TEGROUP_OK);
        check_skew(result, rows, groups, d.tile_rows, d.row_bytes);
        ASSERT_PASSING();
        ASSERT_EQ(tegroup_skew_text(result, NULL, 0), tegroup_skew_text(result, text, sizeof text));
        guarded_remember(result);
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    const tegroup_skew skew = {4, 1, 1, 2, 30, 20, 10, 0, 3, 18, 61440, 36864, 2.0};
    tegroup_skew_text(&skew, text, sizeof text);
    ASSERT_STREQ(text, "4 groups (1 skipped, 1 empty): 30 rows, 10.0 in the mean, 0 to 20, median 10; group 2 has 2.00 times the mean; 3 tiles, 37.5% of their rows wasted, 0.0 of 0.1 MiB");
}

/* Rows of types that are not floating point arrive byte for byte; rows that nobody has stay as they were. */
TEST(moe, permute_of_bytes) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E8M0, TEGROUP_DTYPE_I32, TEGROUP_DTYPE_I64};
    rng r = rng_seed(4020);
    int64_t moved = 0;
    for (int64_t i = scaled(100) * 5; i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        routing_make(&c, &r);
        ASSERT_EQ(tegroup_permutation_make(&c.d, NULL, NULL), TEGROUP_OK);
        const tegroup_dtype dtype = types[i % 5];
        const int64_t width = i % 8 == 0 ? rng_int(&r, 250, 600) : rng_int(&r, 0, 33);
        tegroup_permute_desc p = {.struct_size = sizeof p, .space = TEGROUP_SPACE_HOST, .k = c.k, .tokens = matrix(&r, dtype, c.tokens, width), .slot_of_row = c.d.slot_of_row,
                                  .permuted = matrix(&r, dtype, c.rows, width)};
        if (rng_chance(&r, 50)) p.slot_of_row = no_matrix(), p.row_of_slot = c.d.row_of_slot;
        const size_t size = size_of(dtype), bytes = (size_t)width * size;
        for (int64_t t = 0; t < c.tokens; t++) for (size_t b = 0; b < bytes; b++) ((unsigned char *)p.tokens.data)[(size_t)place(&p.tokens, t, 0) * size + b] = (unsigned char)rng_next(&r);
        remember_all(mark);
        ASSERT_EQ(tegroup_permute(&p, NULL, NULL), TEGROUP_OK);
        for (int64_t row = 0; row < c.rows; row++) {
            int64_t slot = whole(&c.d.slot_of_row, 0, row);
            if (slot < 0) continue;
            ASSERT_EQ(0, memcmp((char *)p.permuted.data + (size_t)place(&p.permuted, row, 0) * size, (char *)p.tokens.data + (size_t)place(&p.tokens, slot / c.k, 0) * size, bytes));
            may_change_row(&p.permuted, row);
            moved += width > 0;
        }
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_GT(moved, 0);
}

/* Of an output without a dtype nothing else is looked at. */
TEST(moe, router_without_counts) {
    float logits[2] = {1, 2};
    int32_t index = -7;
    tegroup_router_desc d = {.struct_size = sizeof d, .space = TEGROUP_SPACE_HOST, .experts = 2, .k = 1,
                             .logits = tegroup_matrix_of(logits, 1, 2, TEGROUP_DTYPE_F32), .indices = tegroup_matrix_of(&index, 1, 1, TEGROUP_DTYPE_I32)};
    d.counts.rows = d.counts.cols = d.counts.ld = INT64_MAX;
    ASSERT_EQ(tegroup_router(&d, NULL, NULL), TEGROUP_OK);
    ASSERT_EQ(index, 1);
}

/* In FP64: <combine(P, w), G> changes by <grad_P, dP> + <grad_w, dw>, which being bilinear it does exactly but for rounding. */
TEST(moe, combine_gradient_is_the_adjoint) {
    rng r = rng_seed(4007);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        routing_make(&c, &r);
        int64_t width = 7;
        ASSERT_EQ(tegroup_permutation_make(&c.d, NULL, NULL), TEGROUP_OK);
        tegroup_combine_desc q = {.struct_size = sizeof q, .space = TEGROUP_SPACE_HOST, .permuted = filled(&r, TEGROUP_DTYPE_F64, c.rows, width, 1),
            .row_of_slot = c.d.row_of_slot, .weights = filled(&r, TEGROUP_DTYPE_F64, c.tokens, c.k, 1), .tokens = matrix(&r, TEGROUP_DTYPE_F64, c.tokens, width)};
        tegroup_combine_backward_desc b = {.struct_size = sizeof b, .space = TEGROUP_SPACE_HOST, .grad_tokens = filled(&r, TEGROUP_DTYPE_F64, c.tokens, width, 1),
            .permuted = q.permuted, .row_of_slot = c.d.row_of_slot, .weights = q.weights, .grad_permuted = filled(&r, TEGROUP_DTYPE_F64, c.rows, width, 0),
            .grad_weights = matrix(&r, TEGROUP_DTYPE_F64, c.tokens, c.k)};
        ASSERT_EQ(tegroup_combine(&q, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_combine_backward(&b, NULL, NULL), TEGROUP_OK);
        double value = 0, by_rows = 0, by_weights = 0;
        for (int64_t t = 0; t < c.tokens; t++) for (int64_t j = 0; j < width; j++) value += at(&q.tokens, t, j) * at(&b.grad_tokens, t, j);
        for (int64_t row = 0; row < c.rows; row++) for (int64_t j = 0; j < width; j++) by_rows += at(&b.grad_permuted, row, j) * at(&q.permuted, row, j);
        for (int64_t t = 0; t < c.tokens; t++) for (int32_t s = 0; s < c.k; s++) by_weights += at(&b.grad_weights, t, s) * at(&q.weights, t, s);
        ASSERT_LE(fabs(value - by_rows), 1e-11);
        ASSERT_LE(fabs(value - by_weights), 1e-11);
        guards_release(mark);
    }
}

/* A number that leads outside means what -1 means: every result has the bits that it has with -1 there. */
TEST(moe, maps_that_lie_mean_nobody) {
    static const int64_t lies[] = {-2, INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX, 6, 7, 1000, (int64_t)1 << 40};
    for (int i = 0; i < (int)(sizeof lies / sizeof *lies); i++)
        for (int dtype = 0; dtype < 4 * 2; dtype++) {
            const tegroup_dtype of_maps = dtype / 4 ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64, of_rows = dtypes[dtype % 4];
            if (of_maps == TEGROUP_DTYPE_I32 && lies[i] != (int32_t)lies[i]) continue;
            void *mark = guards_mark();
            void *results[2][4];
            size_t bytes[4];
            for (int lie = 0; lie < 2; lie++) {
                rng r = rng_seed(4008);
                tegroup_matrix slots = matrix(&r, of_maps, 1, 6), rows = matrix(&r, of_maps, 3, 2), weights = filled(&r, TEGROUP_DTYPE_F32, 3, 2, 1);
                for (int64_t j = 0; j < 6; j++) set_whole(&slots, 0, j, j), set_whole(&rows, j / 2, j % 2, j);
                set_whole(&slots, 0, 4, lie ? lies[i] : -1);
                set_whole(&rows, 2, 0, lie ? lies[i] : -1);
                tegroup_permute_desc p = {.struct_size = sizeof p, .space = TEGROUP_SPACE_HOST, .k = 2, .tokens = filled(&r, of_rows, 3, 4, 1), .slot_of_row = slots,
                                          .weights = weights, .permuted = matrix(&r, of_rows, 6, 4)};
                tegroup_combine_desc q = {.struct_size = sizeof q, .space = TEGROUP_SPACE_HOST, .permuted = filled(&r, of_rows, 6, 4, 1), .row_of_slot = rows,
                                          .weights = weights, .tokens = matrix(&r, of_rows, 3, 4)};
                tegroup_combine_backward_desc b = {.struct_size = sizeof b, .space = TEGROUP_SPACE_HOST, .grad_tokens = filled(&r, of_rows, 3, 4, 1),
                                                   .permuted = q.permuted, .row_of_slot = rows, .weights = weights, .grad_permuted = matrix(&r, of_rows, 6, 4),
                                                   .grad_weights = matrix(&r, TEGROUP_DTYPE_F32, 3, 2)};
                const tegroup_matrix *out[4] = {&p.permuted, &q.tokens, &b.grad_permuted, &b.grad_weights};
                for (int o = 0; o < 4; o++) {
                    results[lie][o] = out[o]->data;
                    bytes[o] = (size_t)(place(out[o], out[o]->rows - 1, out[o]->cols)) * size_of(out[o]->dtype);
                    memset(out[o]->data, 0x5a, bytes[o]);
                }
                remember_all(mark);
                ASSERT_EQ(tegroup_permute(&p, NULL, NULL), TEGROUP_OK);
                ASSERT_EQ(tegroup_combine(&q, NULL, NULL), TEGROUP_OK);
                ASSERT_EQ(tegroup_combine_backward(&b, NULL, NULL), TEGROUP_OK);
                ASSERT_EQ(at(&b.grad_weights, 2, 0), 0.0);
                for (int64_t row = 0; row < 6; row++) if (row != 4) { may_change_row(&p.permuted, row); may_change_row(&b.grad_permuted, row); }
                may_change(&q.tokens); may_change(&b.grad_weights);
                ASSERT_EQ(disturbed(mark), 0); /* the row that nobody has as it was */
            }
            for (int o = 0; o < 4; o++) ASSERT_EQ(memcmp(results[0][o], results[1][o], bytes[o]), 0);
            guards_release(mark);
        }
}

/* ---- activations -------------------------------------------------------------------------------------------------------------- */

typedef struct gate_case { tegroup_activation_desc f; tegroup_activation_backward_desc b; const void *snapshot; int64_t rows, width; int kind; } gate_case;

static void gate_make(gate_case *c, rng *r, int kind, tegroup_dtype dtype, tegroup_dtype scalars, double size) {
    tegroup_layout layout;
    c->width = rng_chance(r, 5) ? rng_int(r, 250, 600) : rng_int(r, 0, 24);
    c->snapshot = NULL;
    c->rows = rng_int(r, 0, 20);
    if (rng_chance(r, 60)) { /* only the rows of some groups, in any order and with gaps */
        spec s = {.op = TEGROUP_OP_FORWARD, .groups = 4, .n = 1, .k = 1, .place = (place_kind)rng_int(r, 0, 3), .alignment = 4, .tail_rows = rng_int(r, 0, 4), .seed = rng_next(r)};
        problem p;
        s.m = random_rows(r, 4, 6, 1);
        problem_make(&p, &s);
        c->rows = p.capacity;
        if (problem_prepare(&p) != TEGROUP_OK || tegroup_snapshot_layout(&p.a.tensor.shape, &layout, NULL) != TEGROUP_OK) abort();
        c->snapshot = p.a.snapshot;
    }
    memset(&c->f, 0, sizeof c->f);
    memset(&c->b, 0, sizeof c->b);
    c->kind = kind;
    c->f.struct_size = sizeof c->f;
    c->b.struct_size = sizeof c->b;
    c->f.space = c->b.space = TEGROUP_SPACE_HOST;
    c->f.activation = c->b.activation = activations[kind];
    if (is_gated(activations[kind])) c->f.interleaved = c->b.interleaved = (int32_t)rng_int(r, 0, 1);
    if (has_limit(activations[kind])) {
        if (rng_chance(r, 50)) c->f.alpha = c->b.alpha = rng_chance(r, 50) ? 1 : 0.8125;
        if (rng_chance(r, 70)) c->f.limit = c->b.limit = rng_chance(r, 20) ? (double)INFINITY : rng_chance(r, 50) ? 1.5 : 0.5;
    }
    c->f.snapshot = c->b.snapshot = c->snapshot;
    int64_t cols = is_gated(activations[kind]) ? 2 * c->width : c->width;
    c->f.input = c->b.input = filled(r, dtype, c->rows, cols, size);
    const double kinks[] = {0, -0.0, 0.5, -0.5, 1.5, -1.5, 7, -7};
    for (int64_t i = rng_int(r, 0, c->rows * cols / 4); i > 0; i--) set(&c->f.input, rng_int(r, 0, c->rows - 1), rng_int(r, 0, cols - 1), kinks[rng_int(r, 0, 7)]);
    if (rng_chance(r, 50)) c->f.row_scale = c->b.row_scale = filled(r, scalars, c->rows, 1, 1);
    c->f.output = matrix(r, dtype, c->rows, c->width);
    c->b.grad_output = filled(r, dtype, c->rows, c->width, 1);
    c->b.grad_input = matrix(r, dtype, c->rows, cols);
    if (rng_chance(r, 70)) c->b.grad_row_scale = matrix(r, scalars, c->rows, 1);
}
static int owned(const gate_case *c, int64_t row) {
    tegroup_snapshot_view v = tegroup_snapshot_read(c->snapshot);
    for (int32_t g = 0; v.header != NULL && g < v.header->groups; g++) if (v.rows[g] > 0 && row >= v.start[g] && row < v.start[g] + v.rows[g]) return 1;
    return v.header == NULL;
}
static int64_t gate_col(const gate_case *c, int64_t j) { return c->f.interleaved ? 2 * j : j; }
static int64_t up_col(const gate_case *c, int64_t j) { return c->f.interleaved ? 2 * j + 1 : c->width + j; }

TEST(moe, activations) {
    rng r = rng_seed(4009);
    int64_t untouched = 0;
    double worst[ACTIVATIONS] = {0};
    for (int64_t i = scaled(200) * ACTIVATIONS; i > 0; i--) {
        void *mark = guards_mark();
        tegroup_dtype dtype = dtypes[rng_int(&r, 0, 3)], scalars = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        arithmetic with = arithmetic_of(dtype, dtype, 0);
        gate_case c;
        gate_make(&c, &r, (int)(i % ACTIVATIONS), dtype, scalars, rng_chance(&r, 80) ? 2 : 12);
        double *off = &worst[c.kind];
        int gated = is_gated(c.f.activation);
        /* rows that nobody owns hold NaN, to show if they are read into anything */
        for (int64_t row = 0; row < c.rows; row++)
            for (int64_t j = 0; j < c.f.input.cols && !owned(&c, row); j++) set(&c.f.input, row, j, NAN);
        remember_all(mark);
        ASSERT_EQ(tegroup_activation_forward(&c.f, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_backward(&c.b, NULL, NULL), TEGROUP_OK);
        for (int64_t row = 0; row < c.rows; row++) {
            double sum = 0, sum_size = 0, sum_bound = 0;
            if (!owned(&c, row)) { untouched++; continue; }
            double scale = c.f.row_scale.dtype != TEGROUP_DTYPE_UNSET ? at(&c.f.row_scale, row, 0) : 1;
            for (int64_t j = 0; j < c.width; j++) {
                activation_expected e = activation_expect(c.f.activation, c.f.alpha, c.f.limit, with, at(&c.f.input, row, gate_col(&c, j)),
                                                          gated ? at(&c.f.input, row, up_col(&c, j)) : 1, scale, at(&c.b.grad_output, row, j));
                ASSERT_TRUE(within(at(&c.f.output, row, j), e.out.want, e.out.bound + stored(dtype, e.out.want), off));
                ASSERT_TRUE(within(at(&c.b.grad_input, row, gate_col(&c, j)), e.grad_gate.want, e.grad_gate.bound + stored(dtype, e.grad_gate.want), off));
                if (gated) ASSERT_TRUE(within(at(&c.b.grad_input, row, up_col(&c, j)), e.grad_up.want, e.grad_up.bound + stored(dtype, e.grad_up.want), off));
                sum += e.term.want;
                sum_size += fabs(e.term.want);
                sum_bound += e.term.bound;
            }
            if (c.b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) {
                ASSERT_TRUE(within(at(&c.b.grad_row_scale, row, 0), sum, sum_bound + (double)(c.width + 2) * with.u * sum_size + 1e-300, off));
                may_change_row(&c.b.grad_row_scale, row);
            }
            may_change_row(&c.f.output, row);
            may_change_row(&c.b.grad_input, row);
        }
        ASSERT_EQ(disturbed(mark), 0);
        guards_release(mark);
    }
    ASSERT_GT(untouched, 0);
    printf("activations, error/bound at most:");
    for (int kind = 0; kind < ACTIVATIONS; kind++) printf(" %s %.3f", activation_names[kind], worst[kind]);
    printf("\n");
}

/* grad_input may be input; and halves or interleaved, the same numbers come out. */
TEST(moe, activations_in_place_and_either_arrangement) {
    rng r = rng_seed(4010);
    int64_t in_place = 0;
    for (int64_t i = scaled(40) * ACTIVATIONS; i > 0; i--) {
        void *mark = guards_mark();
        tegroup_dtype dtype = dtypes[rng_int(&r, 0, 3)], scalars = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        gate_case c, other;
        gate_make(&c, &r, (int)(i % ACTIVATIONS), dtype, scalars, 2);
        int gated = is_gated(c.f.activation);
        ASSERT_EQ(tegroup_activation_forward(&c.f, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_backward(&c.b, NULL, NULL), TEGROUP_OK);
        other = c;
        if (gated) other.f.interleaved = other.b.interleaved = !c.f.interleaved;
        other.f.input = other.b.input = matrix(&r, dtype, c.rows, c.f.input.cols);
        other.f.output = matrix(&r, dtype, c.rows, c.width);
        for (int64_t row = 0; row < c.rows; row++)
            for (int64_t j = 0; j < c.width; j++) {
                set(&other.f.input, row, gate_col(&other, j), at(&c.f.input, row, gate_col(&c, j)));
                if (gated) set(&other.f.input, row, up_col(&other, j), at(&c.f.input, row, up_col(&c, j)));
            }
        ASSERT_EQ(tegroup_activation_forward(&other.f, NULL, NULL), TEGROUP_OK);
        other.b.grad_input = other.b.input;
        if (c.b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) other.b.grad_row_scale = matrix(&r, scalars, c.rows, 1);
        ASSERT_EQ(tegroup_activation_backward(&other.b, NULL, NULL), TEGROUP_OK);
        for (int64_t row = 0; row < c.rows; row++) {
            if (!owned(&c, row)) continue;
            for (int64_t j = 0; j < c.width; j++) {
                ASSERT_EQ(at(&c.f.output, row, j), at(&other.f.output, row, j));
                ASSERT_EQ(at(&c.b.grad_input, row, gate_col(&c, j)), at(&other.b.grad_input, row, gate_col(&other, j)));
                if (gated) ASSERT_EQ(at(&c.b.grad_input, row, up_col(&c, j)), at(&other.b.grad_input, row, up_col(&other, j)));
            }
            if (c.b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) ASSERT_EQ(at(&c.b.grad_row_scale, row, 0), at(&other.b.grad_row_scale, row, 0));
        }
        other = c; /* where there is no gate each result may lie where an operand does */
        other.f.output = other.f.input = matrix(&r, dtype, c.rows, c.f.input.cols);
        other.b.grad_output = other.b.grad_input = matrix(&r, dtype, c.rows, c.width);
        tegroup_error error;
        if (gated && c.rows > 0 && c.width > 0) {
            other.f.output.cols = c.width, other.f.output.ld = other.f.input.cols;
            ASSERT_EQ(tegroup_activation_forward(&other.f, NULL, &error), TEGROUP_ERROR_OVERLAP);
            ASSERT_STREQ(error.rule, "must not overlap input");
        }
        if (!gated && c.f.output.dtype == dtype && c.b.grad_input.dtype == dtype && c.b.grad_output.dtype == dtype) {
            for (int64_t row = 0; row < c.rows; row++)
                for (int64_t j = 0; j < c.width; j++)
                    set(&other.f.input, row, j, at(&c.f.input, row, j)), set(&other.b.grad_output, row, j, at(&c.b.grad_output, row, j));
            if (c.b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) other.b.grad_row_scale = matrix(&r, scalars, c.rows, 1);
            ASSERT_EQ(tegroup_activation_backward(&other.b, NULL, NULL), TEGROUP_OK);
            ASSERT_EQ(tegroup_activation_forward(&other.f, NULL, NULL), TEGROUP_OK);
            for (int64_t row = 0; row < c.rows; row++) {
                if (!owned(&c, row)) continue;
                in_place++;
                for (int64_t j = 0; j < c.width; j++) {
                    ASSERT_EQ(at(&c.f.output, row, j), at(&other.f.output, row, j));
                    ASSERT_EQ(at(&c.b.grad_input, row, j), at(&other.b.grad_input, row, j));
                }
                if (c.b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) ASSERT_EQ(at(&c.b.grad_row_scale, row, 0), at(&other.b.grad_row_scale, row, 0));
            }
            if (c.rows > 0 && c.width > 1) { /* but not one element on */
                other.f.output.data = (char *)other.f.input.data + (dtype == TEGROUP_DTYPE_F64 ? 8 : dtype == TEGROUP_DTYPE_F32 ? 4 : 2);
                ASSERT_EQ(tegroup_activation_forward(&other.f, NULL, &error), TEGROUP_ERROR_OVERLAP);
                ASSERT_STREQ(error.rule, "must not overlap input, unless it is input with the same ld and dtype");
            }
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_GT(in_place, 0);
}

/* DeepSeek-V4's function is SwiGLU where its limit is not reached, to the bit, and no offset is added to up. */
TEST(moe, limited_swiglu_without_a_limit_is_swiglu) {
    rng r = rng_seed(4018);
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        tegroup_dtype dtype = dtypes[rng_int(&r, 0, 3)], scalars = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        gate_case c, other;
        gate_make(&c, &r, 0, dtype, scalars, 2);
        ASSERT_EQ(c.f.activation, TEGROUP_ACTIVATION_SWIGLU);
        c.b.grad_input = matrix(&r, dtype, c.rows, c.f.input.cols);
        other = c;
        other.f.activation = other.b.activation = TEGROUP_ACTIVATION_SWIGLU_LIMITED;
        other.f.limit = other.b.limit = rng_chance(&r, 50) ? (double)INFINITY : 1e4;
        other.f.output = matrix(&r, c.f.output.dtype, c.rows, c.width);
        other.b.grad_input = matrix(&r, dtype, c.rows, c.f.input.cols);
        ASSERT_EQ(tegroup_activation_forward(&c.f, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_backward(&c.b, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_forward(&other.f, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_backward(&other.b, NULL, NULL), TEGROUP_OK);
        for (int64_t row = 0; row < c.rows; row++)
            for (int64_t j = 0; owned(&c, row) && j < c.width; j++) {
                ASSERT_EQ(at(&c.f.output, row, j), at(&other.f.output, row, j));
                ASSERT_EQ(at(&c.b.grad_input, row, gate_col(&c, j)), at(&other.b.grad_input, row, gate_col(&c, j)));
                ASSERT_EQ(at(&c.b.grad_input, row, up_col(&c, j)), at(&other.b.grad_input, row, up_col(&c, j)));
            }
        guards_release(mark);
    }
}

/* Differences across a kink mean nothing: of the gate at 0 and at the limit, of up at the limits. */
static int near_kink(const gate_case *c, double x) {
    double limit = activation_limit(c->f.activation, c->f.limit);
    return fabs(x) < 1e-4 || fabs(fabs(x) - limit) < 1e-4;
}

TEST(moe, activation_gradients_by_finite_differences) {
    rng r = rng_seed(4011);
    double worst[ACTIVATIONS] = {0};
    for (int64_t i = scaled(40) * ACTIVATIONS; i > 0; i--) {
        void *mark = guards_mark();
        gate_case c;
        gate_make(&c, &r, (int)(i % ACTIVATIONS), TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, 2);
        ASSERT_EQ(tegroup_activation_forward(&c.f, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_backward(&c.b, NULL, NULL), TEGROUP_OK);
        for (int probe = 0; probe < 20 && c.rows > 0 && c.width > 0; probe++) {
            int64_t row = rng_int(&r, 0, c.rows - 1), col = rng_int(&r, 0, c.f.input.cols - 1);
            int scales = c.f.row_scale.dtype != TEGROUP_DTYPE_UNSET && c.b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET && rng_chance(&r, 30);
            tegroup_matrix *input = scales ? &c.f.row_scale : &c.f.input;
            if (scales) col = 0;
            double x = at(input, row, col), value[2], step = 1e-5;
            if (!owned(&c, row) || (!scales && near_kink(&c, x))) continue;
            for (int side = 0; side < 2; side++) {
                set(input, row, col, side ? x + step : x - step);
                ASSERT_EQ(tegroup_activation_forward(&c.f, NULL, NULL), TEGROUP_OK);
                value[side] = 0;
                for (int64_t j = 0; j < c.width; j++) value[side] += at(&c.f.output, row, j) * at(&c.b.grad_output, row, j);
            }
            set(input, row, col, x);
            double numeric = (value[1] - value[0]) / (2 * step), analytic = scales ? at(&c.b.grad_row_scale, row, 0) : at(&c.b.grad_input, row, col);
            double error = fabs(numeric - analytic) / (fabs(analytic) + 1e-1);
            if (error > worst[c.kind]) worst[c.kind] = error;
            ASSERT_LT(error, 1e-6);
        }
        guards_release(mark);
    }
    printf("gradients against differences, at most:");
    for (int kind = 0; kind < ACTIVATIONS; kind++) {
        printf(" %s %.1e", activation_names[kind], worst[kind]);
        ASSERT_GT(worst[kind], 0);
    }
    printf("\n");
}

/* A NaN shows in the output; infinities and numbers as large as a type has give what they should. */
TEST(moe, activations_of_extremes) {
    const float huge[] = {3e38f, 1e20f, 1e5f, 200, 20};
    for (int kind = 0; kind < ACTIVATIONS; kind++)
        for (int interleaved = 0; interleaved <= is_gated(activations[kind]); interleaved++) {
            float x[2], y, dx[2], dy = 1;
            tegroup_activation_desc f;
            tegroup_activation_backward_desc b;
            memset(&f, 0, sizeof f);
            memset(&b, 0, sizeof b);
            f.struct_size = sizeof f;
            b.struct_size = sizeof b;
            f.space = b.space = TEGROUP_SPACE_HOST;
            f.activation = b.activation = activations[kind];
            f.interleaved = b.interleaved = interleaved;
            f.input.data = x;
            f.input.rows = 1;
            f.input.cols = 1 + is_gated(activations[kind]);
            f.input.dtype = TEGROUP_DTYPE_F32;
            f.output = f.input;
            f.output.cols = 1;
            f.output.data = &y;
            b.input = b.grad_input = f.input;
            b.grad_input.data = dx;
            b.grad_output = f.output;
            b.grad_output.data = &dy;
            for (int which = 0; which < (int)f.input.cols; which++) {
                x[0] = x[1] = 1;
                x[which] = NAN;
                ASSERT_EQ(tegroup_activation_forward(&f, NULL, NULL), TEGROUP_OK);
                ASSERT_TRUE(isnan(y));
            }
            for (int i = 0; i < (int)(sizeof huge / sizeof *huge); i++) {
                const tegroup_activation which = activations[kind];
                int bounded = has_limit(which), squares = activations[kind] == TEGROUP_ACTIVATION_RELU_SQUARED,
                    same = activations[kind] == TEGROUP_ACTIVATION_IDENTITY;
                x[1] = 1;
                x[0] = huge[i];
                ASSERT_EQ(tegroup_activation_forward(&f, NULL, NULL), TEGROUP_OK);
                ASSERT_EQ(tegroup_activation_backward(&b, NULL, NULL), TEGROUP_OK);
                if (bounded) ASSERT_LT(fabs(y - (which == TEGROUP_ACTIVATION_SITU_GLU ? 4 * tanh(huge[i] / 4) * 25 * tanh(1.0 / 25) : which == TEGROUP_ACTIVATION_SWIGLU_LIMITED ? 10 / (1 + exp(-10)) : 14 / (1 + exp(-1.702 * 7)))), 1e-5);
                else ASSERT_EQ(y, squares ? x[0] * x[0] : x[0]);
                if (which == TEGROUP_ACTIVATION_SITU_GLU) ASSERT_LT(fabsf(dx[0]), 2e-4f);
                else ASSERT_EQ(dx[0], bounded ? 0.0f : squares ? 2 * x[0] : 1.0f);
                x[0] = -huge[i];
                ASSERT_EQ(tegroup_activation_forward(&f, NULL, NULL), TEGROUP_OK);
                ASSERT_EQ(tegroup_activation_backward(&b, NULL, NULL), TEGROUP_OK);
                ASSERT_LT(fabsf(y - (same ? x[0] : 0)), 1e-6f);
                ASSERT_LT(fabsf(dx[0] - (float)same), 1e-6f);
            }
            if (activations[kind] == TEGROUP_ACTIVATION_REGLU || activations[kind] == TEGROUP_ACTIVATION_RELU || activations[kind] == TEGROUP_ACTIVATION_RELU_SQUARED)
                for (int i = 0; i < 4; i++) { /* a gate that is not above 0 has no gradient, whatever comes back */
                    x[0] = i % 2 ? -1.0f : 0.0f;
                    x[1] = 1e30f;
                    dy = i / 2 ? INFINITY : 1e10f;
                    ASSERT_EQ(tegroup_activation_backward(&b, NULL, NULL), TEGROUP_OK);
                    ASSERT_EQ(dx[0], 0.0f);
                }
        }
}

/* Every gate with every up, of infinities, NaN and numbers. */
TEST(moe, activations_at_infinity) {
    rng r = rng_seed(4012);
    for (int i = 0; i < 16 * ACTIVATIONS; i++) {
        void *mark = guards_mark();
        tegroup_activation kind = activations[i % ACTIVATIONS];
        tegroup_dtype dtype = dtypes[i / ACTIVATIONS % 4];
        tegroup_activation_desc f;
        tegroup_activation_backward_desc b;
        memset(&f, 0, sizeof f);
        f.struct_size = sizeof f;
        f.space = TEGROUP_SPACE_HOST;
        f.activation = kind;
        f.interleaved = i / ACTIVATIONS / 4 % 2 && is_gated(kind);
        if (has_limit(kind) && i / ACTIVATIONS / 8) { f.alpha = 0.8125; f.limit = INFINITY; }
        f.input = matrix(&r, dtype, GATES_BEYOND, is_gated(kind) ? 2 * UPS_BEYOND : UPS_BEYOND);
        f.output = matrix(&r, dtype, GATES_BEYOND, UPS_BEYOND);
        memset(&b, 0, sizeof b);
        b.struct_size = sizeof b;
        b.space = TEGROUP_SPACE_HOST;
        b.activation = kind;
        b.interleaved = f.interleaved;
        b.alpha = f.alpha;
        b.limit = f.limit;
        b.input = f.input;
        b.grad_output = matrix(&r, dtype, GATES_BEYOND, UPS_BEYOND);
        b.grad_input = matrix(&r, dtype, GATES_BEYOND, f.input.cols);
        for (int g = 0; g < GATES_BEYOND; g++)
            for (int u = 0; u < UPS_BEYOND; u++) {
                set(&f.input, g, f.interleaved ? 2 * u : u, gates_beyond[g]);
                if (is_gated(kind)) set(&f.input, g, f.interleaved ? 2 * u + 1 : UPS_BEYOND + u, ups_beyond[u]);
                set(&b.grad_output, g, u, 1);
            }
        ASSERT_EQ(tegroup_activation_forward(&f, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_activation_backward(&b, NULL, NULL), TEGROUP_OK);
        for (int g = 0; g < GATES_BEYOND; g++)
            for (int u = 0; u < UPS_BEYOND; u++) {
                activation_beyond e = activation_expect_beyond(kind, f.alpha, f.limit, gates_beyond[g], ups_beyond[u]);
                ASSERT_TRUE(same_beyond(at(&f.output, g, u), e.out));
                ASSERT_TRUE(same_beyond(at(&b.grad_input, g, f.interleaved ? 2 * u : u), e.grad_gate));
                if (is_gated(kind)) ASSERT_TRUE(same_beyond(at(&b.grad_input, g, f.interleaved ? 2 * u + 1 : UPS_BEYOND + u), e.grad_up));
            }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

TEST_MAIN()
