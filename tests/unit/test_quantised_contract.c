/* The contract for quantised operands, a test a line: each scaling with itself, in every op, on the CPU. test_quantised_gemm.c has the
 * values; here it is what a call may touch, and what its bits may depend on. */
#define TEGROUP_IMPLEMENTATION
#include "quantised_problem.h"
#include "test.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};

/* A random problem of one scaling, drawn again until it is regular and no list; ragged: its rows are, too. */
static void regular_problem(problem *p, rng *r, const scaling_row *f, tegroup_op op, int ragged) {
    quantised q[2];
    for (;;) {
        memset(q, 0, sizeof q);
        quantised_problem(p, r, f, f, op, q, 0);
        if (p->s.groups > 0 && p->s.ng == NULL && p->s.kg == NULL && (p->s.lists & 15) == 0 && (!ragged || p->s.m != NULL)
            && p->desc.a.shape.elements + p->desc.b.shape.elements + p->desc.d.shape.elements == 0) return;
        problem_release(p);
    }
}
static int has_skipped(const problem *p) { /* a group of which nothing is written */
    for (int32_t g = 0; g < p->s.groups; g++)
        if (group_skipped(&p->s, g)) return 1;
    return 0;
}
#define EACH_SCALING_AND_OP(f, op)                                                         \
    for (const scaling_row *f = scaling_rows; f < scaling_rows + SCALINGS; f++)            \
        for (int op = 0; op < 3; op++)

static int same_results(const double *a, const double *b, int64_t count) { return memcmp(a, b, (size_t)count * 8) == 0; }

static void repeat(problem *p) { /* the planned call, over D as it was */
    problem_reset(p);
    ASSERT_EQ(problem_prepare(p), TEGROUP_OK);
    ASSERT_EQ(tegroup_gemm(&p->plan, &p->desc, NULL, &p->error), TEGROUP_OK);
}

/* 1. The same bits where D lies elsewhere, in rows further apart; and a workspace that does not grow with the rows. */
TEST(quantised_contract, line1_output_in_callers_buffer) {
    rng r = rng_seed(8001);
    EACH_SCALING_AND_OP(f, op)
        for (int64_t i = scaled(20); i > 0; i--) {
            problem p;
            int64_t count, again;
            do regular_problem(&p, &r, f, ops[op], 0);
            while ((p.s.c != C_NONE || p.desc.d.group_stride != 0 || has_skipped(&p)) && (problem_release(&p), 1));
            ASSERT_EQ(problem_run(&p), TEGROUP_OK);
            double *here = results_of(&p, &count), *there;
            const int64_t element = (int64_t)size_of(p.d.dtype), ld = p.desc.d.ld != 0 ? p.desc.d.ld : p.desc.d.shape.cols, wider = ld + rng_int(&r, 1, 5);
            const int64_t rows = p.desc.d.shape.rows * (p.s.m != NULL && ops[op] != TEGROUP_OP_WGRAD ? 1 : p.s.groups);
            unsigned char *base = (unsigned char *)p.d.tensor.data, *moved = (unsigned char *)guarded_skewed((size_t)(rows * wider * element), (size_t)element);
            for (int32_t g = 0; g < p.s.groups; g++) {
                if (ld > 0) p.d.at[g] = moved + (p.d.at[g] - base) / element / ld * wider * element;
                p.d.ld[g] = wider;
            }
            p.desc.d.data = moved;
            p.desc.d.ld = wider;
            ASSERT_EQ(problem_run(&p), TEGROUP_OK);
            there = results_of(&p, &again);
            ASSERT_EQ(count, again);
            ASSERT_TRUE(same_results(here, there, count));
            ASSERT_EQ(guards_changed(), 0);
            free(here), free(there);
            problem_release(&p);
        }
    EACH_SCALING_AND_OP(f, op) {
        tegroup_plan plans[2];
        for (int many = 0; many < 2; many++) {
            const tegroup_dtype dtype = is_fp4(f->scaling) ? TEGROUP_DTYPE_F4E2M1 : TEGROUP_DTYPE_F8E4M3;
            const int64_t rows = many ? 3000 : 2, of_a = rows, of_b = ops[op] == TEGROUP_OP_WGRAD ? rows : 64, of_d = ops[op] == TEGROUP_OP_WGRAD ? 64 : rows;
            tegroup_gemm_desc d = {.struct_size = sizeof d, .op = ops[op], .space = TEGROUP_SPACE_HOST};
            d.a = tegroup_tensor_uniform(2, of_a, 64, dtype, NULL);
            d.b = tegroup_tensor_uniform(2, of_b, 64, dtype, NULL);
            d.d = tegroup_tensor_uniform(2, of_d, 64, TEGROUP_DTYPE_F32, NULL);
            d.a.scaling = d.b.scaling = f->scaling;
            d.options.threads = 2;
            ASSERT_EQ(tegroup_plan_make(&d, NULL, &plans[many], NULL), TEGROUP_OK);
        }
        ASSERT_EQ(plans[0].workspace_bytes, plans[1].workspace_bytes);
    }
}

/* 2. Rows that no group owns: KEEP leaves every bit, ZERO writes zeros, POISON writes NaN; the others are the same in all three. */
TEST(quantised_contract, line2_tail_untouched) {
    rng r = rng_seed(8002);
    int64_t unowned = 0;
    EACH_SCALING_AND_OP(f, op)
        for (int64_t i = ops[op] == TEGROUP_OP_WGRAD ? 0 : scaled(10); i > 0; i--) {
            problem p;
            int64_t count;
            double *kept = NULL, *now;
            regular_problem(&p, &r, f, ops[op], 1);
            const int64_t ld = p.desc.d.ld != 0 ? p.desc.d.ld : p.desc.d.shape.cols;
            for (int tail = TEGROUP_TAIL_KEEP; tail <= TEGROUP_TAIL_POISON; tail++) {
                p.desc.tail = (tegroup_tail)tail;
                ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
                repeat(&p);
                ASSERT_PASSING();
                now = results_of(&p, &count);
                if (kept == NULL) kept = now;
                else { ASSERT_TRUE(same_results(kept, now, count)); free(now); }
                for (int64_t row = 0; row < p.desc.d.shape.rows; row++) {
                    int owned = 0;
                    for (int32_t g = 0; g < p.s.groups; g++) owned |= row >= p.start[g] && row < p.start[g] + p.d.rows[g];
                    for (int64_t col = 0; col < p.desc.d.shape.cols && !owned; col++, unowned++) {
                        const double x = load(p.d.dtype, p.d.tensor.data, row * ld + col);
                        if (tail == TEGROUP_TAIL_KEEP) {
                            const size_t element = size_of(p.d.dtype), at = (size_t)(row * ld + col) * element;
                            ASSERT_EQ(memcmp((char *)p.d.tensor.data + at, (const char *)guarded_memory(p.d.tensor.data) + at, element), 0);
                        } else if (tail == TEGROUP_TAIL_ZERO) ASSERT_TRUE(x == 0 && !signbit(x));
                        else ASSERT_TRUE(isnan(x));
                    }
                }
                ASSERT_EQ(guards_changed(), 0);
            }
            free(kept);
            problem_release(&p);
        }
    ASSERT_GT(unowned, 0);
}

/* 3. Nothing to sum: D = beta * C exactly, and no scale is asked for. NaN in all scales of b shows in every result that sums anything,
 * and without it no result is NaN, though all padding of codes and scales is. */
TEST(quantised_contract, line3_nothing_to_sum_is_beta_c) {
    static const float special[] = {-0.0f, 0.0f, INFINITY, -INFINITY, 0x1p-140f, 1.0f, -3.5f, 0x1p120f};
    rng r = rng_seed(8003);
    EACH_SCALING_AND_OP(f, op) {
        const tegroup_dtype dtype = is_fp4(f->scaling) ? TEGROUP_DTYPE_F4E2M1 : TEGROUP_DTYPE_F8E4M3;
        const int wgrad = ops[op] == TEGROUP_OP_WGRAD;
        float c[2][3][4], d[2][3][4], beta[2] = {-0.5f, 0};
        tegroup_plan plan;
        tegroup_gemm_desc desc = {.struct_size = sizeof desc, .op = ops[op], .space = TEGROUP_SPACE_HOST};
        for (int e = 0; e < 24; e++) (&c[0][0][0])[e] = special[rng_int(&r, 0, 7)];
        desc.a = wgrad ? tegroup_tensor_uniform(2, 0, 3, dtype, NULL) : tegroup_tensor_uniform(2, 3, 0, dtype, NULL);
        desc.b = wgrad ? tegroup_tensor_uniform(2, 0, 4, dtype, NULL) : ops[op] == TEGROUP_OP_FORWARD ? tegroup_tensor_uniform(2, 4, 0, dtype, NULL) : tegroup_tensor_uniform(2, 0, 4, dtype, NULL);
        if (is_fp4(f->scaling) && wgrad) desc.a.ld = 4; /* a row begins with a byte */
        desc.a.scaling = desc.b.scaling = f->scaling;
        desc.c = tegroup_tensor_uniform(2, 3, 4, TEGROUP_DTYPE_F32, c);
        desc.d = tegroup_tensor_uniform(2, 3, 4, TEGROUP_DTYPE_F32, d);
        desc.beta.space = TEGROUP_SPACE_HOST;
        desc.beta.data = beta;
        desc.beta.stride = 1;
        ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, NULL), TEGROUP_OK);
        void *workspace = guarded(plan.workspace_bytes);
        desc.options.workspace = workspace;
        desc.options.workspace_bytes = plan.workspace_bytes;
        memset(d, 0xff, sizeof d);
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, NULL), TEGROUP_OK);
        for (int e = 0; e < 24; e++) {
            const float want = e < 12 ? -0.5f * (&c[0][0][0])[e] : 0.0f;
            ASSERT_EQ(memcmp(&want, (&d[0][0][0]) + e, 4), 0);
        }
    }
    int64_t shown = 0;
    EACH_SCALING_AND_OP(f, op)
        for (int64_t i = scaled(10); i > 0; i--) {
            problem p;
            regular_problem(&p, &r, f, ops[op], 0);
            const tegroup_tensor *b = &p.desc.b;
            const int cw = tegroup_impl_reads_columnwise(&p.desc, TEGROUP_IMPL_B);
            void *scales = cw ? b->columnwise_scale_inv : b->scale_inv;
            for (int spoilt = 0; spoilt < 2; spoilt++) {
                if (spoilt) memset(scales, 0xff, guarded_find(scales)->bytes);
                ASSERT_EQ(problem_run(&p), TEGROUP_OK);
                for (int32_t g = 0; g < p.s.groups; g++)
                    for (int64_t row = 0; row < p.d.rows[g]; row++)
                        for (int64_t col = 0; col < p.d.cols[g]; col++) {
                            const int64_t terms = ops[op] == TEGROUP_OP_WGRAD ? p.b.rows[g] : ops[op] == TEGROUP_OP_DGRAD ? p.b.rows[g] : p.b.cols[g];
                            if (ops[op] == TEGROUP_OP_WGRAD && group_skipped(&p.s, g)) continue;
                            if (!spoilt || terms == 0) ASSERT_FALSE(isnan(value_at(&p.d, g, row, col)));
                            else { ASSERT_TRUE(isnan(value_at(&p.d, g, row, col))); shown++; }
                        }
                if (spoilt) break;
                for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older) /* D again, and the scales stay */
                    if (!node->scratch && node->copy != NULL && (void *)node->data == p.d.tensor.data) memcpy(node->data, node->copy, node->bytes);
            }
            problem_release(&p);
        }
    ASSERT_GT(shown, 0);
}

/* Puts other sizes into a problem whose rows are ragged; lies: they may be anything. */
static void other_sizes(problem *p, rng *r, int lies) {
    static const int64_t odd[] = {INT64_MIN, INT64_MAX, -2, -1000, 1 << 20, INT64_C(1) << 40, INT64_C(1) << 62, 5, 0};
    int64_t *sizes = (int64_t *)(uintptr_t)p->desc.a.shape.row_sizes.data;
    for (int32_t g = 0; g < p->s.groups; g++) {
        const int64_t most = group_rows(&p->s, g);
        if (group_skipped(&p->s, g)) continue; /* a gradient that nobody writes */
        sizes[g] = lies && rng_chance(r, 50) ? odd[rng_int(r, 0, 8)] : rng_int(r, 0, most); /* honest ones are no longer than before */
    }
    guarded_remember(sizes);
    p->a.clamp = p->b.clamp = p->c.clamp = p->d.clamp = lies;
}
static void counted_problem(problem *p, rng *r, const scaling_row *f, tegroup_op op) { /* sizes are counts of 64 bits that all operands share */
    do regular_problem(p, r, f, op, 1);
    while ((p->s.encoding > TEGROUP_ENCODING_COUNTS || p->s.index == TEGROUP_DTYPE_I32) && (problem_release(p), 1));
}

/* 4. Sizes that lie: no byte outside of the rows that the snapshot grants is written, and codes and scales are read within their
 * buffers, which the address sanitizer of the quick suite sees. */
TEST(quantised_contract, line4_lying_sizes_stay_inside) {
    rng r = rng_seed(8004);
    int64_t told = 0, runs = 0;
    EACH_SCALING_AND_OP(f, op)
        for (int64_t i = scaled(20); i > 0; i--, runs++) {
            problem p;
            counted_problem(&p, &r, f, ops[op]);
            other_sizes(&p, &r, 1);
            p.desc.options.check_level = TEGROUP_CHECK_HOST;
            ASSERT_EQ(problem_run(&p), TEGROUP_OK);
            const tegroup_snapshot_view v = tegroup_snapshot_read(p.desc.a.shape.snapshot);
            told += v.header->status != 0;
            for (int32_t g = 0; g < p.s.groups && ops[op] != TEGROUP_OP_WGRAD; g++) {
                ASSERT_TRUE(v.rows[g] <= 0 || (v.start[g] >= 0 && v.start[g] + v.rows[g] <= p.capacity));
                p.d.rows[g] = v.rows[g] > 0 ? v.rows[g] : 0;
                p.d.at[g] = (unsigned char *)p.d.tensor.data + v.start[g] * p.d.ld[g] * (int64_t)size_of(p.d.dtype);
            }
            if (p.s.tail == TEGROUP_TAIL_KEEP) ASSERT_EQ(problem_disturbed(&p), 0);
            ASSERT_EQ(guards_changed(), 0);
            problem_release(&p);
        }
    ASSERT_GT(told, runs / 4);
}

/* 5. The same plan over other sizes gives what a fresh one gives, byte for byte, whatever D and the workspace held. */
TEST(quantised_contract, line5_replay_with_other_sizes) {
    rng r = rng_seed(8005);
    EACH_SCALING_AND_OP(f, op)
        for (int64_t i = scaled(10); i > 0; i--) {
            problem p;
            counted_problem(&p, &r, f, ops[op]);
            ASSERT_EQ(problem_run(&p), TEGROUP_OK);
            const size_t bytes = guarded_find(p.d.tensor.data)->bytes;
            void *before = scratch(bytes);
            for (int replay = 0; replay < 3; replay++) {
                other_sizes(&p, &r, 0);
                problem_reset(&p);
                poison(p.desc.options.workspace, p.desc.options.workspace_bytes);
                ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
                ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &p.error), TEGROUP_OK);
                memcpy(before, p.d.tensor.data, bytes);
                problem_reset(&p);
                ASSERT_EQ(problem_run(&p), TEGROUP_OK); /* another plan, another workspace */
                ASSERT_EQ(memcmp(before, p.d.tensor.data, bytes), 0);
            }
            problem_release(&p);
        }
}

/* The first group without the others has the bits that it has among them. */
static void first_group_alone(problem *p, const double *among) {
    const tegroup_gemm_desc all = p->desc;
    tegroup_tensor *const of[] = {&p->desc.a, &p->desc.b, &p->desc.c, &p->desc.d, &p->desc.bias};
    int64_t count;
    for (int i = 0; i < 5; i++)
        if (of[i]->dtype != TEGROUP_DTYPE_UNSET) of[i]->shape.groups = 1;
    ASSERT_EQ(problem_plan(p), TEGROUP_OK);
    repeat(p);
    ASSERT_PASSING();
    double *alone = results_of(p, &count);
    ASSERT_TRUE(same_results(among, alone, p->d.rows[0] * p->d.cols[0]));
    free(alone);
    p->desc = all;
}

/* 6. Bits do not depend on the number of threads, on the workspace, on other groups or on a run before; and a plan for more rows has
 * the same id. */
TEST(quantised_contract, line6_bitwise_deterministic) {
    rng r = rng_seed(8006);
    int64_t alone = 0;
    EACH_SCALING_AND_OP(f, op)
        for (int64_t i = scaled(10); i > 0; i--) {
            problem p;
            int64_t count, again;
            double *first = NULL, *now;
            uint64_t id = 0;
            regular_problem(&p, &r, f, ops[op], 0);
            for (int32_t threads = 1; threads <= 3; threads += 2) {
                p.desc.options.threads = threads;
                ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
                if (first == NULL) id = p.plan.numerics_id;
                ASSERT_TRUE(p.plan.numerics_id == id);
                poison(p.desc.options.workspace, p.desc.options.workspace_bytes);
                repeat(&p);
                ASSERT_PASSING();
                now = results_of(&p, &again);
                if (first == NULL) { first = now; count = again; continue; }
                ASSERT_EQ(count, again);
                ASSERT_TRUE(same_results(first, now, count));
                free(now);
            }
            if (p.s.m == NULL && p.s.groups > 1) {
                first_group_alone(&p, first);
                ASSERT_PASSING();
                alone++;
            }
            if (p.s.m == NULL && ops[op] == TEGROUP_OP_FORWARD) {
                p.desc.a.shape.rows = p.desc.d.shape.rows *= 6;
                p.desc.a.group_stride = p.desc.d.group_stride = p.desc.c.group_stride = 0;
                p.desc.a.scale_outer_stride = p.desc.a.scale_inner_stride = 0;
                p.desc.c.shape.rows = p.desc.d.shape.rows;
                ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
                ASSERT_TRUE(p.plan.numerics_id == id);
            }
            free(first);
            problem_release(&p);
        }
    ASSERT_GT(alone, 0);
}

/* 7, 8. Explain is what the plan does, on any machine; what it does not choose it refuses with a reason; and it chooses nothing that
 * the table of known-bad combinations refuses. */
static void explain_all(const tegroup_gemm_desc *d, const tegroup_target *target, int64_t *chosen, int64_t *refused) {
    tegroup_verdict v[TEGROUP_BACKEND_COUNT - 1];
    tegroup_plan plan;
    tegroup_error error;
    int32_t quirks;
    const tegroup_quirk *quirk = tegroup_quirks(&quirks);
    int found = 0;
    ASSERT_EQ(tegroup_explain(d, target, v, &error), TEGROUP_OK);
    const tegroup_status status = tegroup_plan_make(d, target, &plan, &error);
    for (int b = 0; b < TEGROUP_BACKEND_COUNT - 1; b++) {
        if (v[b].status != TEGROUP_OK) {
            ASSERT_TRUE(v[b].field != NULL && v[b].rule != NULL && !v[b].chosen);
            ++*refused;
        }
        if (!v[b].chosen) continue;
        found++;
        ++*chosen;
        ASSERT_EQ(status, TEGROUP_OK);
        ASSERT_EQ((int)plan.backend, (int)v[b].backend);
        ASSERT_EQ(plan.workspace_bytes, v[b].workspace_bytes);
        for (int32_t i = 0; i < quirks; i++)
            if (quirk[i].action == TEGROUP_QUIRK_REFUSE && quirk[i].backend == v[b].backend && quirk[i].sm_min <= target->sm && target->sm <= quirk[i].sm_max
                && quirk[i].cublaslt_from <= target->cublaslt_version && target->cublaslt_version < quirk[i].cublaslt_below)
                ASSERT_FALSE(quirk[i].when == TEGROUP_QUIRK_ALWAYS || (quirk[i].when == TEGROUP_QUIRK_WGRAD && d->op == TEGROUP_OP_WGRAD));
    }
    ASSERT_EQ(found, status == TEGROUP_OK);
}
static void explain_everywhere(uint64_t seed, const int32_t *sms, const int32_t *versions, int count, int64_t *chosen) {
    rng r = rng_seed(seed);
    int64_t refused = 0;
    EACH_SCALING_AND_OP(f, op)
        for (int device = 0; device < 2; device++)
            for (int i = 0; i < count; i++) {
                tegroup_target target = {.struct_size = sizeof target, .sm = sms[i], .cublaslt_version = versions[rng_int(&r, 0, count - 1)], .built = 0xFFFFFFFFu};
                problem p;
                regular_problem(&p, &r, f, ops[op], 0);
                tegroup_gemm_desc d = p.desc;
                tegroup_tensor *tensors[] = {&d.a, &d.b, &d.c, &d.d};
                if (device) d.space = TEGROUP_SPACE_DEVICE;
                for (int t = 0; t < 4 && device; t++)
                    if (tensors[t]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) tensors[t]->shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
                explain_all(&d, &target, chosen, &refused);
                ASSERT_PASSING();
                problem_release(&p);
            }
    ASSERT_GT(*chosen, 0);
    ASSERT_GT(refused, 0);
}
TEST(quantised_contract, line7_explain_is_the_plan) {
    static const int32_t sms[] = {0, 75, 80, 90, 120}, versions[] = {0, 130100, 130500, 130801, 131000};
    int64_t chosen = 0;
    explain_everywhere(8007, sms, versions, 5, &chosen);
}
TEST(quantised_contract, line8_known_bad_combinations) {
    static const int32_t sms[] = {100, 100, 103, 100, 90}, versions[] = {130200, 130700, 130700, 130800, 131000};
    int64_t chosen = 0;
    explain_everywhere(8008, sms, versions, 5, &chosen);
}

/* 9. What is wrong with codes and scales has a name, and nothing was written. */
TEST(quantised_contract, line9_errors_name_the_field) {
    rng r = rng_seed(8009);
    EACH_SCALING_AND_OP(f, op) {
        problem p;
        do regular_problem(&p, &r, f, ops[op], 0);
        while ((p.desc.a.shape.rows == 0 || p.desc.a.shape.cols == 0 || p.desc.b.shape.rows == 0 || p.desc.b.shape.cols == 0 || p.desc.d.shape.rows == 0) && (problem_release(&p), 1));
        ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
        ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
        for (int which = 0; which < 2; which++)
            for (int what = 0; what < 6; what++) {
                tegroup_gemm_desc d = p.desc;
                tegroup_tensor *t = which ? &d.b : &d.a;
                const int cw = tegroup_impl_reads_columnwise(&d, (tegroup_impl_operand)which);
                void **data = cw ? &t->columnwise_data : &t->data, **scales = cw ? &t->columnwise_scale_inv : &t->scale_inv;
                tegroup_status want = TEGROUP_OK;
                const char *name = "";
                char field[64];
                if (what == 0) *scales = NULL, want = TEGROUP_ERROR_NULL_ARGUMENT, name = cw ? "columnwise_scale_inv" : "scale_inv";
                if (what == 1) *data = d.d.data, want = TEGROUP_ERROR_OVERLAP, name = NULL;
                if (what == 2) t->scaling = TEGROUP_SCALING_COUNT, want = TEGROUP_ERROR_VALUE, name = "scaling";
                if (what == 3) t->scale_dtype = TEGROUP_DTYPE_F64, want = TEGROUP_ERROR_DTYPE, name = "scale_dtype";
                if (what == 4) t->scale_parts = -1, want = TEGROUP_ERROR_VALUE, name = "scale_parts";
                if (what == 5) t->columnwise_order = t->columnwise_order ? TEGROUP_COLUMNWISE_AS_DATA : TEGROUP_COLUMNWISE_TRANSPOSED, want = cw && t->code_order ? TEGROUP_ERROR_COMBINATION : TEGROUP_ERROR_PLAN, name = "columnwise_order";
                snprintf(field, sizeof field, name ? "%c.%s" : "d.data", "ab"[which], name);
                ASSERT_EQ(tegroup_gemm(&p.plan, &d, NULL, &p.error), want);
                ASSERT_STREQ(p.error.field, field);
                ASSERT_NE(p.error.expected, p.error.got);
                ASSERT_TRUE(p.error.rule != NULL && p.error.rule[0] != 0);
                for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
                    if (!node->scratch && node->copy != NULL) ASSERT_EQ(guarded_changed(node->data), 0);
            }
        problem_release(&p);
    }
}

TEST(quantised_contract, every_line_has_a_test) {
    char pattern[] = "quantised_contract.line?_*", *number = strchr(pattern, '?');
    for (*number = '1'; *number <= '9'; ++*number) ASSERT_EQ(test_count(pattern), 1);
}

TEST_MAIN()
