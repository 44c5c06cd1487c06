/* Router, permutation, permute, combine, activations and tegroup_validate on a GPU: floating point against references in FP64 by
 * bounds of rounding theory, integers bit for bit against the CPU, and everything else as it was before the call. */
#define TEGROUP_IMPLEMENTATION
#include "graph.h"
#include "activations.h"
#include "test.h"
#include "ties.h"

static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
static struct { int64_t elements; double worst; } totals; /* what comparisons add to, until a test prints them: error / bound */

/* Matrices whose rows may be moved 16 bytes at a time, and ones whose rows may not. */
static tegroup_matrix matrix(rng *r, int vectors, tegroup_dtype dtype, int64_t rows, int64_t cols) {
    const int64_t room = vectors ? 16 * rng_int(r, 0, 1) : rng_int(r, 0, 5);
    tegroup_matrix m = tegroup_matrix_of(NULL, rows, cols, dtype);
    if (room != 0) m.ld = cols + room;
    const int64_t elements = rows > 0 ? (rows - 1) * (cols + room) + cols : 0;
    m.data = guarded_skewed((size_t)elements * size_of(dtype), vectors ? 16 * (size_t)rng_int(r, 0, 3) : size_of(dtype) * (size_t)rng_int(r, 0, 3));
    return m;
}
static int64_t place(const tegroup_matrix *m, int64_t row, int64_t col) { return row * (m->ld != 0 ? m->ld : m->cols) + col; }
static double at(const tegroup_matrix *m, int64_t row, int64_t col) { return load(m->dtype, m->data, place(m, row, col)); }
static void set(tegroup_matrix *m, int64_t row, int64_t col, double x) { store(m->dtype, m->data, place(m, row, col), x); }
/* Integers of either type, each chosen anew. */
static tegroup_dtype integers(rng *r) { return rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64; }
static int64_t whole(const tegroup_matrix *m, int64_t row, int64_t col) {
    return m->dtype == TEGROUP_DTYPE_I32 ? ((int32_t *)m->data)[place(m, row, col)] : ((int64_t *)m->data)[place(m, row, col)];
}
static void set_whole(tegroup_matrix *m, int64_t row, int64_t col, int64_t x) {
    if (m->dtype == TEGROUP_DTYPE_I32) ((int32_t *)m->data)[place(m, row, col)] = (int32_t)x;
    else ((int64_t *)m->data)[place(m, row, col)] = x;
}
/* What is no group's, some of it only as long as nobody looks at its lower half alone. */
static int64_t nonsense(rng *r, tegroup_dtype dtype, int32_t groups) {
    const int64_t narrow[] = {-1, -1, -2, INT32_MIN, INT32_MAX, groups}, wide[] = {INT64_MIN, INT64_MAX, INT64_C(1) << 32, -(INT64_C(1) << 32)};
    return dtype == TEGROUP_DTYPE_I64 && rng_chance(r, 40) ? wide[rng_int(r, 0, 3)] : narrow[rng_int(r, 0, 5)];
}
static tegroup_matrix filled(rng *r, int vectors, tegroup_dtype dtype, int64_t rows, int64_t cols, double size) {
    tegroup_matrix m = matrix(r, vectors, dtype, rows, cols);
    for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < cols; j++) set(&m, i, j, size * rng_normal(r));
    return m;
}
static tegroup_matrix no_matrix(void) { tegroup_matrix m; memset(&m, 0, sizeof m); return m; }
static tegroup_matrix on_device(tegroup_matrix m) { m.data = device_of(m.data); return m; }
static double weight_at(const tegroup_matrix *w, int64_t t, int64_t j) { return w->dtype == TEGROUP_DTYPE_UNSET ? 1 : at(w, t, j); }
static tegroup_dtype wide_of(tegroup_dtype dtype) { return dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32; }

static void remember_all(void *mark) {
    for (guarded_node *n = guarded_top; n != (guarded_node *)mark; n = n->older) if (!n->scratch) guarded_remember(n->data);
}
static void may_change_row(const tegroup_matrix *m, int64_t row) {
    guarded_node *n = guarded_find(m->data);
    const size_t from = (size_t)place(m, row, 0) * size_of(m->dtype);
    memcpy(n->copy + from, n->data + from, (size_t)m->cols * size_of(m->dtype));
}
static void may_change(const tegroup_matrix *m) { for (int64_t i = 0; i < m->rows; i++) may_change_row(m, i); }
static int64_t disturbed(void *mark) {
    int64_t changed = guards_changed();
    for (guarded_node *n = guarded_top; n != (guarded_node *)mark; n = n->older) if (!n->scratch && n->copy != NULL) changed += guarded_changed(n->data);
    return changed;
}

static int within(double got, double want, double bound) {
    const double ratio = got == want ? 0 : fabs(got - want) / bound;
    if (!(ratio <= 1)) fprintf(stderr, "got %.17g, want %.17g, bound %g\n", got, want, bound);
    if (ratio > totals.worst || ratio != ratio) totals.worst = ratio;
    totals.elements++;
    return ratio <= 1;
}
static void print_totals(const char *what) {
    printf("%s: %ld elements, error/bound at most %.3f\n", what, (long)totals.elements, totals.worst);
    ASSERT_GT(totals.worst, 0); /* a GPU never has the very numbers of the FP64 reference */
    memset(&totals, 0, sizeof totals);
}
static double stored(tegroup_dtype dtype, double x) { return unit_roundoff(dtype) * fabs(x) * (1 + 0x1p-6) + smallest_step(dtype) / 2; }

/* Run on the device what was mirrored there, and bring it back; then once more, which must change no bit. */
#define RUN(call)                                                                                                      \
    do {                                                                                                               \
        tegroup_error error_;                                                                                          \
        tegroup_error *error = &error_;                                                                                \
        memset(error, 0, sizeof *error);                                                                               \
        const tegroup_status status_ = (call);                                                                         \
        if (status_ != TEGROUP_OK) fprintf(stderr, "refused: %s %s\n", error->field, error->rule);                     \
        ASSERT_EQ(TEGROUP_OK, status_);                                                                                \
        MUST(cudaDeviceSynchronize());                                                                                 \
    } while (0)
#define RUN_TWICE(mark, call)                                                                                          \
    do {                                                                                                               \
        RUN(call);                                                                                                     \
        mirror_down();                                                                                                 \
        unsigned char *first_ = (unsigned char *)malloc(arena_used);                                                   \
        memcpy(first_, arena_copy, arena_used);                                                                        \
        RUN(call);                                                                                                     \
        MUST(cudaMemcpy(arena_copy, arena, arena_used, cudaMemcpyDeviceToHost));                                       \
        ASSERT_EQ(0, memcmp(first_, arena_copy, arena_used));                                                          \
        free(first_);                                                                                                  \
    } while (0)

/* ---- activations -------------------------------------------------------------------------------------------------------- */

typedef struct gate_case {
    tegroup_activation_desc f;
    tegroup_activation_backward_desc b;
    const void *snapshot;
    int64_t rows, width;
} gate_case;

static void gate_make(gate_case *c, rng *r, int vectors, tegroup_activation kind, tegroup_dtype dtype, tegroup_dtype out, int32_t interleaved, double size, int64_t rows, int64_t width, int32_t groups) {
    const tegroup_dtype scalars = rng_chance(r, 80) ? wide_of(dtype) : TEGROUP_DTYPE_F64;
    memset(c, 0, sizeof *c);
    c->width = width;
    c->rows = rows;
    if (groups > 0) {
        spec s;
        problem p;
        memset(&s, 0, sizeof s);
        s.op = TEGROUP_OP_FORWARD;
        s.groups = groups;
        s.n = s.k = 1;
        s.place = (place_kind)rng_int(r, 0, 3);
        s.alignment = 4;
        s.tail_rows = rng_int(r, 0, 4);
        s.seed = rng_next(r);
        s.m = random_rows(r, groups, rows / groups + 1, 1);
        problem_make(&p, &s);
        c->rows = p.capacity;
        if (problem_prepare(&p) != TEGROUP_OK) abort();
        c->snapshot = p.a.snapshot;
    }
    c->f.struct_size = sizeof c->f;
    c->b.struct_size = sizeof c->b;
    c->f.space = c->b.space = TEGROUP_SPACE_DEVICE;
    c->f.activation = c->b.activation = kind;
    c->f.interleaved = c->b.interleaved = interleaved && is_gated(kind);
    if (has_limit(kind)) {
        if (rng_chance(r, 50)) c->f.alpha = c->b.alpha = rng_chance(r, 50) ? 1 : 0.8125;
        if (rng_chance(r, 70)) c->f.limit = c->b.limit = rng_chance(r, 20) ? (double)INFINITY : rng_chance(r, 50) ? 1.5 : 0.5;
    }
    const int64_t cols = is_gated(kind) ? 2 * width : width;
    c->f.input = c->b.input = filled(r, vectors, dtype, c->rows, cols, size);
    const double kinks[] = {0, -0.0, 0.5, -0.5, 1.5, -1.5, 7, -7};
    for (int64_t i = rng_int(r, 0, c->rows * cols / 4); i > 0; i--) set(&c->f.input, rng_int(r, 0, c->rows - 1), rng_int(r, 0, cols - 1), kinks[rng_int(r, 0, 7)]);
    if (rng_chance(r, 50)) c->f.row_scale = c->b.row_scale = filled(r, 0, scalars, c->rows, 1, 1);
    c->f.output = matrix(r, vectors, out, c->rows, width);
    c->b.grad_output = filled(r, vectors, out, c->rows, width, 1);
    c->b.grad_input = rng_chance(r, 20) ? c->b.input : matrix(r, vectors, dtype, c->rows, cols);
    if (rng_chance(r, 70)) c->b.grad_row_scale = matrix(r, 0, scalars, c->rows, 1);
}
static int owned(const gate_case *c, int64_t row) {
    tegroup_snapshot_view v = tegroup_snapshot_read(c->snapshot);
    for (int32_t g = 0; v.header != NULL && g < v.header->groups; g++) if (v.rows[g] > 0 && row >= v.start[g] && row < v.start[g] + v.rows[g]) return 1;
    return v.header == NULL;
}

static const char *gate_check(gate_case *c, void *mark) {
    const tegroup_dtype in = c->f.input.dtype, out = c->f.output.dtype;
    const arithmetic with = arithmetic_of(in, out, 1);
    const int gated = is_gated(c->f.activation);
    const tegroup_matrix input = c->f.input; /* in place, its old values are in the copy */
    const char *old = (const char *)guarded_find(input.data)->copy;
    for (int64_t row = 0; row < c->rows; row++) {
        double sum = 0, sum_size = 0, sum_bound = 0;
        if (!owned(c, row)) continue;
        const double scale = weight_at(&c->f.row_scale, row, 0);
        for (int64_t j = 0; j < c->width; j++) {
            const int64_t gc = c->f.interleaved ? 2 * j : j, uc = c->f.interleaved ? 2 * j + 1 : c->width + j;
            const activation_expected e = activation_expect(c->f.activation, c->f.alpha, c->f.limit, with, load(in, old, place(&input, row, gc)),
                                                            gated ? load(in, old, place(&input, row, uc)) : 1, scale, at(&c->b.grad_output, row, j));
            if (!within(at(&c->f.output, row, j), e.out.want, e.out.bound + stored(out, e.out.want))) return "forward";
            if (!within(at(&c->b.grad_input, row, gc), e.grad_gate.want, e.grad_gate.bound + stored(in, e.grad_gate.want))) return "gradient of the gate";
            if (gated && !within(at(&c->b.grad_input, row, uc), e.grad_up.want, e.grad_up.bound + stored(in, e.grad_up.want))) return "gradient of up";
            sum += e.term.want;
            sum_size += fabs(e.term.want);
            sum_bound += e.term.bound;
        }
        if (c->b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) {
            if (!within(at(&c->b.grad_row_scale, row, 0), sum, sum_bound + ((double)c->width + 2) * with.u * sum_size + 1e-300)) return "gradient of row_scale";
            may_change_row(&c->b.grad_row_scale, row);
        }
        may_change_row(&c->f.output, row);
        may_change_row(&c->b.grad_input, row);
    }
    return disturbed(mark) == 0 ? "" : "bytes changed that are not the result's";
}

static tegroup_activation_desc forward_on_device(tegroup_activation_desc d) {
    d.snapshot = device_of(d.snapshot);
    d.input = on_device(d.input);
    d.row_scale = on_device(d.row_scale);
    d.output = on_device(d.output);
    return d;
}
static tegroup_activation_backward_desc backward_on_device(tegroup_activation_backward_desc d) {
    d.snapshot = device_of(d.snapshot);
    d.input = on_device(d.input);
    d.row_scale = on_device(d.row_scale);
    d.grad_output = on_device(d.grad_output);
    d.grad_input = on_device(d.grad_input);
    d.grad_row_scale = on_device(d.grad_row_scale);
    return d;
}

/* Every kind by every kernel: 4 types by vectors and by elements, mixed types, halves, interleaved and not gated. */
TEST(moe_gpu, activations) {
    rng r = rng_seed(5001);
    for (int64_t i = scaled(3) * 20 * ACTIVATIONS; i > 0; i--) {
        void *mark = guards_mark();
        const int vectors = i % 2 == 0, mixed = i % 20 >= 16;
        const tegroup_dtype dtype = dtypes[i / 4 % 4], out = mixed ? dtypes[rng_int(&r, 0, 3)] : dtype;
        gate_case c;
        gate_make(&c, &r, vectors, activations[i / 20 % ACTIVATIONS], dtype, out, (int32_t)(i / 2 % 2), rng_chance(&r, 80) ? 2 : 30, rng_int(&r, 0, rng_chance(&r, 10) ? 3000 : 40),
                  vectors ? 8 * rng_int(&r, 0, 40) : rng_int(&r, 0, 70), rng_chance(&r, 60) ? (int32_t)rng_int(&r, 1, 9) : 0);
        if (rng_chance(&r, 3)) c.f.snapshot = c.b.snapshot = NULL, c.snapshot = NULL;
        c.f.snapshot = c.b.snapshot = c.snapshot;
        for (int64_t row = 0; row < c.rows; row++) /* rows that nobody owns hold NaN, to show if they are read into anything */
            for (int64_t j = 0; j < c.f.input.cols && !owned(&c, row); j++) set(&c.f.input, row, j, NAN);
        remember_all(mark);
        mirror_up(mark);
        const tegroup_activation_desc f = forward_on_device(c.f);
        const tegroup_activation_backward_desc b = backward_on_device(c.b);
        RUN(tegroup_activation_forward(&f, NULL, error));
        if (c.b.grad_input.data == c.b.input.data) {
            RUN(tegroup_activation_backward(&b, NULL, error));
            mirror_down();
        } else {
            RUN_TWICE(mark, tegroup_activation_backward(&b, NULL, error));
        }
        ASSERT_STREQ("", gate_check(&c, mark));
        guards_release(mark);
    }
    print_totals("activations");
}

/* A copy in memory of its own. */
static tegroup_matrix copied(const tegroup_matrix *m) {
    tegroup_matrix copy = *m;
    const size_t bytes = (size_t)tegroup_impl_matrix_bytes(m);
    if (bytes == 0) return copy;
    MUST(cudaMalloc(&copy.data, bytes));
    MUST(cudaMemcpy(copy.data, m->data, bytes, cudaMemcpyDeviceToDevice));
    return copy;
}
static int same_rows(const gate_case *c, const tegroup_matrix *a, const tegroup_matrix *b) {
    const size_t element = (size_t)tegroup_dtype_bits(a->dtype) / 8, width = (size_t)a->cols * element;
    unsigned char *x = (unsigned char *)malloc(2 * width + 1), *y = x + width;
    int same = 1;
    for (int64_t row = 0; row < c->rows && width > 0; row++) {
        if (!owned(c, row)) continue;
        MUST(cudaMemcpy(x, (char *)a->data + (size_t)(row * tegroup_impl_matrix_ld(a)) * element, width, cudaMemcpyDeviceToHost));
        MUST(cudaMemcpy(y, (char *)b->data + (size_t)(row * tegroup_impl_matrix_ld(b)) * element, width, cudaMemcpyDeviceToHost));
        same &= memcmp(x, y, width) == 0;
    }
    free(x);
    return same;
}

/* Where there is no gate a result may lie where an operand does, with the same bits. */
TEST(moe_gpu, activations_in_place) {
    rng r = rng_seed(5009);
    for (int64_t i = scaled(1) * 8 * ACTIVATIONS; i > 0; i--) {
        if (is_gated(activations[i % ACTIVATIONS])) continue;
        void *mark = guards_mark();
        const int vectors = (int)(i / ACTIVATIONS % 2);
        const tegroup_dtype dtype = dtypes[i / ACTIVATIONS / 2 % 4];
        gate_case c;
        gate_make(&c, &r, vectors, activations[i % ACTIVATIONS], dtype, dtype, 0, 2, rng_int(&r, 1, 300), vectors ? 8 * rng_int(&r, 1, 40) : rng_int(&r, 1, 70), (int32_t)rng_int(&r, 0, 5));
        c.b.grad_input = matrix(&r, vectors, dtype, c.rows, c.width);
        c.f.snapshot = c.b.snapshot = c.snapshot;
        mirror_up(mark);
        const tegroup_activation_desc f = forward_on_device(c.f);
        const tegroup_activation_backward_desc b = backward_on_device(c.b);
        tegroup_activation_desc f_in_place = f;
        tegroup_activation_backward_desc b_in_place = b;
        f_in_place.input = f_in_place.output = copied(&f.input);
        b_in_place.grad_output = b_in_place.grad_input = copied(&b.grad_output);
        b_in_place.grad_row_scale = copied(&b.grad_row_scale);
        RUN(tegroup_activation_forward(&f, NULL, error));
        RUN(tegroup_activation_backward(&b, NULL, error));
        RUN(tegroup_activation_forward(&f_in_place, NULL, error));
        RUN(tegroup_activation_backward(&b_in_place, NULL, error));
        ASSERT_TRUE(same_rows(&c, &f.output, &f_in_place.output));
        ASSERT_TRUE(same_rows(&c, &b.grad_input, &b_in_place.grad_input));
        if (b.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) ASSERT_TRUE(same_rows(&c, &b.grad_row_scale, &b_in_place.grad_row_scale));
        if (f_in_place.output.data != f.input.data) MUST(cudaFree(f_in_place.output.data));
        if (b_in_place.grad_input.data != b.grad_output.data) MUST(cudaFree(b_in_place.grad_input.data));
        if (b_in_place.grad_row_scale.data != b.grad_row_scale.data) MUST(cudaFree(b_in_place.grad_row_scale.data));
        guards_release(mark);
    }
}

/* A snapshot of thousands of groups, one that is none, and one whose numbers lead outside. */
TEST(moe_gpu, activations_and_odd_snapshots) {
    rng r = rng_seed(5002);
    for (int64_t i = scaled(40) * 3; i > 0; i--) {
        void *mark = guards_mark();
        gate_case c;
        gate_make(&c, &r, 1, activations[rng_int(&r, 0, ACTIVATIONS - 1)], dtypes[i % 3], dtypes[i % 3], 0, 2, 100, 16, (int32_t)(rng_chance(&r, 10) ? 4096 : rng_int(&r, 1, 300)));
        c.f.snapshot = c.b.snapshot = c.snapshot;
        tegroup_snapshot_header *header = (tegroup_snapshot_header *)(uintptr_t)c.snapshot;
        tegroup_snapshot_view v = tegroup_snapshot_read(c.snapshot);
        if (i % 3 == 1) header->magic++;
        if (i % 3 == 2)
            for (int lies = 0; lies < 5; lies++) {
                const int32_t g = (int32_t)rng_int(&r, 0, header->groups - 1);
                const int64_t lie = rng_chance(&r, 50) ? (int64_t)rng_next(&r) : rng_int(&r, -9, 9999);
                int64_t *target = (int64_t *)(uintptr_t)(rng_chance(&r, 40) ? v.start + g : rng_chance(&r, 60) ? v.rows + g : v.prefix + g);
                *target = lie;
            }
        remember_all(mark);
        mirror_up(mark);
        const tegroup_activation_desc f = forward_on_device(c.f);
        const tegroup_activation_backward_desc b = backward_on_device(c.b);
        RUN(tegroup_activation_forward(&f, NULL, error));
        RUN(tegroup_activation_backward(&b, NULL, error));
        mirror_down();
        if (i % 3 == 0) ASSERT_STREQ("", gate_check(&c, mark));
        else if (i % 3 == 1) ASSERT_EQ(0, disturbed(mark));
        else ASSERT_EQ(0, guards_changed());
        guards_release(mark);
    }
}

/* What an epilogue will do: the two functions of one pair, the kind chosen at run time, by other threads in another order. */
static __global__ void pair_by_pair(const tegroup_activation_desc f, const tegroup_activation_backward_desc b, uint16_t *out, uint16_t *grad) {
    const int64_t width = f.output.cols, cols = f.input.cols, i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, row = i / width, j = i % width;
    const int gated = cols != width;
    if (i >= f.output.rows * width) return;
    const int64_t g = row * cols + (f.interleaved ? 2 * j : j), u = f.interleaved ? g + 1 : gated ? g + width : g;
    const float alpha = (float)tegroup_impl_alpha(f.activation, f.alpha), limit = (float)tegroup_impl_limit(f.activation, f.limit), scale = ((const float *)f.row_scale.data)[row];
    const float gate = tegroup_impl_load_f32(TEGROUP_DTYPE_BF16, f.input.data, g), up = tegroup_impl_load_f32(TEGROUP_DTYPE_BF16, f.input.data, u);
    float grad_gate, grad_up;
    tegroup_impl_activation_grad_f32(f.activation, 1, alpha, limit, gate, up, scale * tegroup_impl_load_f32(TEGROUP_DTYPE_BF16, b.grad_output.data, i), &grad_gate, &grad_up);
    out[i] = tegroup_impl_bf16_of_f32(scale * tegroup_impl_activation_f32(f.activation, 1, alpha, limit, gate, up));
    grad[g] = tegroup_impl_bf16_of_f32(grad_gate);
    if (gated) grad[u] = tegroup_impl_bf16_of_f32(grad_up);
}

TEST(moe_gpu, activations_inside_another_kernel) {
    enum { ROWS = 200, WIDTH = 264 };
    rng r = rng_seed(5012);
    for (int kind = 0; kind < 2 * ACTIVATIONS; kind++) {
        void *mark = guards_mark();
        gate_case c;
        gate_make(&c, &r, 1, activations[kind % ACTIVATIONS], TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, kind / ACTIVATIONS, kind % 3 ? 2 : 12, ROWS, WIDTH, 0);
        tegroup_matrix *all[] = {&c.f.input, &c.f.output, &c.b.grad_output};
        for (tegroup_matrix *m : all) { m->ld = 0; m->data = guarded((size_t)(m->rows * m->cols) * 2); for (int64_t i = 0; i < m->rows * m->cols; i++) store(m->dtype, m->data, i, 3 * rng_normal(&r)); }
        c.b.input = c.b.grad_input = c.f.input;
        c.b.grad_input.data = guarded((size_t)(ROWS * c.f.input.cols) * 2);
        /* One scale after another, as pair_by_pair reads them. */
        c.f.row_scale = tegroup_matrix_of(guarded(ROWS * sizeof(float)), ROWS, 1, TEGROUP_DTYPE_F32);
        for (int64_t i = 0; i < ROWS; i++) store(TEGROUP_DTYPE_F32, c.f.row_scale.data, i, rng_normal(&r));
        c.b.row_scale = c.f.row_scale;
        uint16_t *out = (uint16_t *)guarded(ROWS * WIDTH * 2), *grad = (uint16_t *)guarded((size_t)(ROWS * c.f.input.cols) * 2);
        mirror_up(mark);
        const tegroup_activation_desc f = forward_on_device(c.f);
        const tegroup_activation_backward_desc b = backward_on_device(c.b);
        RUN(tegroup_activation_forward(&f, NULL, error));
        RUN(tegroup_activation_backward(&b, NULL, error));
        pair_by_pair<<<(ROWS * WIDTH + 63) / 64, 64>>>(f, b, (uint16_t *)device_of(out), (uint16_t *)device_of(grad));
        MUST(cudaGetLastError());
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(0, memcmp(out, c.f.output.data, ROWS * WIDTH * 2));
        ASSERT_EQ(0, memcmp(grad, c.b.grad_input.data, (size_t)(ROWS * c.f.input.cols) * 2));
        guards_release(mark);
    }
}

/* Every gate with every up, of infinities, NaN and numbers, by vectors and by elements. */
TEST(moe_gpu, activations_at_infinity) {
    rng r = rng_seed(5013);
    for (int i = 0; i < 32 * ACTIVATIONS; i++) {
        void *mark = guards_mark();
        const tegroup_activation kind = activations[i % ACTIVATIONS];
        const tegroup_dtype dtype = dtypes[i / ACTIVATIONS % 4];
        const int vectors = i / ACTIVATIONS / 8 % 2;
        const int64_t step = i / ACTIVATIONS / 4 % 2 && is_gated(kind) ? 2 : 1, to_up = step == 2 ? 1 : UPS_BEYOND;
        gate_case c;
        gate_make(&c, &r, vectors, kind, dtype, dtype, (int32_t)step - 1, 1, GATES_BEYOND, UPS_BEYOND, 0);
        c.f.row_scale = c.b.row_scale = c.b.grad_row_scale = no_matrix();
        c.f.alpha = c.b.alpha = has_limit(kind) && i / ACTIVATIONS / 16 ? 0.8125 : 0;
        c.f.limit = c.b.limit = c.f.alpha != 0 ? (double)INFINITY : 0;
        c.b.grad_input = matrix(&r, vectors, dtype, GATES_BEYOND, c.f.input.cols);
        for (int g = 0; g < GATES_BEYOND; g++)
            for (int u = 0; u < UPS_BEYOND; u++) {
                set(&c.f.input, g, step * u, gates_beyond[g]);
                if (is_gated(kind)) set(&c.f.input, g, step * u + to_up, ups_beyond[u]);
                set(&c.b.grad_output, g, u, 1);
            }
        mirror_up(mark);
        const tegroup_activation_desc f = forward_on_device(c.f);
        const tegroup_activation_backward_desc b = backward_on_device(c.b);
        RUN(tegroup_activation_forward(&f, NULL, error));
        RUN(tegroup_activation_backward(&b, NULL, error));
        mirror_down();
        for (int g = 0; g < GATES_BEYOND; g++)
            for (int u = 0; u < UPS_BEYOND; u++) {
                const activation_beyond e = activation_expect_beyond(kind, c.f.alpha, c.f.limit, gates_beyond[g], ups_beyond[u]);
                ASSERT_TRUE(same_beyond(at(&c.f.output, g, u), e.out));
                ASSERT_TRUE(same_beyond(at(&c.b.grad_input, g, step * u), e.grad_gate));
                if (is_gated(kind)) ASSERT_TRUE(same_beyond(at(&c.b.grad_input, g, step * u + to_up), e.grad_up));
            }
        ASSERT_EQ(0, guards_changed());
        guards_release(mark);
    }
}

/* ---- permutation ------------------------------------------------------------------------------------------------------- */

typedef struct routing { int64_t tokens, rows; int32_t experts, k; tegroup_permutation_desc d; } routing;

static void routing_make(routing *c, rng *r, int64_t tokens, int32_t experts, int32_t k) {
    tegroup_permutation_desc *d = &c->d;
    tegroup_layout layout;
    memset(c, 0, sizeof *c);
    c->tokens = tokens;
    c->experts = experts;
    c->k = k;
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->indices = matrix(r, 0, integers(r), tokens, k);
    int64_t *counts = (int64_t *)calloc((size_t)experts + 1, 8), sum = 0;
    const int favourites = rng_chance(r, 30);
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t j = 0; j < k; j++) {
            const int64_t e = rng_chance(r, 95) ? rng_int(r, 0, favourites ? (experts - 1) / 8 : experts - 1) : nonsense(r, d->indices.dtype, experts);
            set_whole(&d->indices, t, j, e);
            if (e >= 0 && e < experts) counts[e]++;
        }
    const int policy = (int)rng_int(r, 0, 2); /* exact counts, a capacity, or room to spare */
    for (int32_t e = 0; e < experts; e++) {
        if (policy == 1) counts[e] = rng_int(r, 0, counts[e] + 1);
        if (policy == 2) counts[e] += rng_int(r, 0, 3);
        sum += counts[e];
    }
    const void *listed = index_array(TEGROUP_DTYPE_I64, counts, experts);
    tegroup_sizes sizes = tegroup_sizes_of(listed, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    free(counts);
    if (rng_chance(r, 30)) { sizes.alignment = 4; sum += 4 * experts; }
    c->rows = sum + rng_int(r, 0, 5);
    d->shape = tegroup_shape_of(experts, c->rows, 1, sizes);
    d->row_of_slot = matrix(r, 0, integers(r), tokens, k);
    d->slot_of_row = matrix(r, 0, integers(r), 1, c->rows);
    if (tegroup_snapshot_layout(&d->shape, &layout, NULL) != TEGROUP_OK) abort();
    void *snapshot = guarded(layout.total_bytes);
    if (tegroup_shape_prepare(&d->shape, snapshot, layout.total_bytes, NULL, NULL) != TEGROUP_OK) abort();
}

static tegroup_permutation_desc permutation_on_device(tegroup_permutation_desc d, tegroup_layout *layout) {
    d.space = TEGROUP_SPACE_DEVICE;
    d.shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
    d.shape.snapshot = device_of(d.shape.snapshot);
    d.snapshot = device_of(d.snapshot);
    d.indices = on_device(d.indices);
    d.row_of_slot = on_device(d.row_of_slot);
    d.slot_of_row = on_device(d.slot_of_row);
    d.weights = on_device(d.weights);
    d.slot_weights = on_device(d.slot_weights);
    d.row_weights = on_device(d.row_weights);
    if (tegroup_permutation_layout(&d, layout, NULL) != TEGROUP_OK) abort();
    d.workspace_bytes = layout->total_bytes;
    d.workspace = layout->total_bytes ? arena_take(layout->total_bytes, 0) : NULL;
    return d;
}

/* The snapshot is made with the permutation, often of fewer rows than slots ask for. */
static void prepares(routing *c, rng *r) {
    tegroup_layout layout;
    if (tegroup_snapshot_layout(&c->d.shape, &layout, NULL) != TEGROUP_OK) abort();
    c->d.snapshot = guarded(layout.total_bytes);
    c->d.snapshot_bytes = layout.total_bytes;
    c->d.shape.snapshot = NULL;
    if (rng_chance(r, 30)) c->rows = c->d.shape.rows = c->d.slot_of_row.cols = rng_int(r, 0, c->rows);
}
/* Rows' weights are wanted. */
static void gives_weights(routing *c, rng *r) {
    c->d.slot_weights = filled(r, 0, rng_chance(r, 30) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, c->tokens, c->k, 1);
    c->d.row_weights = filled(r, 0, c->d.slot_weights.dtype, 1, c->rows, 1);
}
/* By weight, often of few values: what full groups keep. */
static void weigh(routing *c, rng *r) {
    const int few = rng_chance(r, 50);
    c->d.weights = filled(r, 0, rng_chance(r, 30) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, c->tokens, c->k, 1);
    for (int64_t slot = 0; few && slot < c->tokens * c->k; slot++) set(&c->d.weights, slot / c->k, slot % c->k, rng_chance(r, 5) ? (double)NAN : 0.25 * (double)rng_int(r, -1, 2));
}
static void random_routing(routing *c, rng *r, int64_t i) {
    static const int32_t sizes[] = {1, 7, 8, 9, 128, 1024, 1025, 4096};
    const int32_t experts = i % 16 < 8 ? sizes[i % 8] : (int32_t)rng_int(r, 1, 300);
    routing_make(c, r, rng_int(r, 0, rng_chance(r, 20) ? 3000 : 60), experts, (int32_t)(rng_chance(r, 10) ? 64 : rng_int(r, 1, 9)));
}

TEST(moe_gpu, permutation_equals_the_cpus) {
    rng r = rng_seed(5003);
    for (int64_t i = scaled(20) * 16; i > 0; i--) {
        void *mark = guards_mark();
        tegroup_layout layout;
        routing c;
        random_routing(&c, &r, i);
        if (rng_chance(&r, 40)) weigh(&c, &r);
        if (rng_chance(&r, 60)) prepares(&c, &r);
        if (rng_chance(&r, 50)) gives_weights(&c, &r);
        mirror_up(mark);
        const tegroup_permutation_desc d = permutation_on_device(c.d, &layout);
        ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&c.d, NULL, NULL));
        remember_all(mark);
        RUN_TWICE(mark, tegroup_permutation_make(&d, NULL, error));
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
}

/* One graph makes snapshots and permutations of whatever experts the slots name by then: of more slots than the warps of
 * the grid take in one round, of some, and of few. */
TEST(moe_gpu, permutations_prepare_in_a_graph) {
    static const int64_t tokens[] = {90000, 2000, 40};
    rng r = rng_seed(5031);
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    for (int which = 0; which < 3; which++) {
        void *mark = guards_mark();
        tegroup_layout layout;
        routing c;
        tegroup_error error;
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        routing_make(&c, &r, tokens[which], which == 1 ? 512 : 128, 8);
        memset(&c.d.shape.row_sizes, 0, sizeof c.d.shape.row_sizes);
        prepares(&c, &r);
        gives_weights(&c, &r);
        mirror_up(mark);
        const tegroup_permutation_desc d = permutation_on_device(c.d, &layout);
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&d, stream, &error));
        MUST(cudaStreamEndCapture(stream, &graph));
        ASSERT_EQ(1, only_kernels(graph));
        MUST(cudaGraphInstantiate(&replay, graph, 0));
        MUST(cudaGraphDestroy(graph));
        for (int64_t i = scaled(20); i > 0; i--) {
            const int32_t most = (int32_t)rng_int(&r, 0, c.experts - 1);
            for (int64_t slot = 0; slot < c.tokens * c.k; slot++)
                set_whole(&c.d.indices, slot / c.k, slot % c.k,
                          rng_chance(&r, 97) ? rng_int(&r, 0, most) : nonsense(&r, c.d.indices.dtype, c.experts));
            mirror_up(mark);
            MUST(cudaMemset(d.workspace, 0xF1, d.workspace_bytes));
            MUST(cudaGraphLaunch(replay, stream));
            ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&c.d, NULL, NULL));
            remember_all(mark);
            MUST(cudaStreamSynchronize(stream));
            mirror_down();
            ASSERT_EQ(0, disturbed(mark));
        }
        MUST(cudaGraphExecDestroy(replay));
        guards_release(mark);
    }
    MUST(cudaStreamDestroy(stream));
}

TEST(moe_gpu, permutation_with_snapshots_that_lie) {
    rng r = rng_seed(5004);
    for (int64_t i = scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        tegroup_layout layout;
        routing c;
        random_routing(&c, &r, 9);
        if (rng_chance(&r, 50)) weigh(&c, &r);
        tegroup_snapshot_header *header = (tegroup_snapshot_header *)(uintptr_t)c.d.shape.snapshot;
        tegroup_snapshot_view v = tegroup_snapshot_read(header);
        for (int lies = 0; lies < 5; lies++) {
            const int32_t g = (int32_t)rng_int(&r, 0, c.experts - 1);
            *(int64_t *)(uintptr_t)(rng_chance(&r, 50) ? v.start + g : v.rows + g) = rng_chance(&r, 50) ? (int64_t)rng_next(&r) : rng_int(&r, -9, 9999);
        }
        if (i % 2) header->magic = 7;
        remember_all(mark);
        mirror_up(mark);
        const tegroup_permutation_desc d = permutation_on_device(c.d, &layout);
        RUN(tegroup_permutation_make(&d, NULL, error));
        mirror_down();
        for (int64_t s = 0; s < c.tokens * c.k; s++) {
            const int64_t row = whole(&c.d.row_of_slot, s / c.k, s % c.k);
            ASSERT_TRUE(row >= -1 && row < c.rows && (i % 2 == 0 || row == -1));
        }
        may_change(&c.d.row_of_slot);
        may_change(&c.d.slot_of_row);
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
}

/* ---- counts ------------------------------------------------------------------------------------------------------------ */

TEST(moe_gpu, counts_equal_a_loop) {
    static const int32_t sizes[] = {0, 1, 2, 1023, 1024, 1025, 4095, 4096};
    rng r = rng_seed(5015);
    for (int64_t i = scaled(10) * 16; i > 0; i--) {
        void *mark = guards_mark();
        const int32_t groups = i % 16 < 8 ? sizes[i % 8] : (int32_t)rng_int(&r, 0, 300);
        const int flat = rng_chance(&r, 30), offsets = rng_chance(&r, 70), favourites = rng_chance(&r, 30);
        const int64_t many = rng_chance(&r, 20) ? 9000 : 60;
        tegroup_count_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_DEVICE;
        d.groups = groups;
        d.labels = matrix(&r, 0, integers(&r), flat ? 1 : rng_int(&r, 0, many), flat ? rng_int(&r, 0, many) : rng_int(&r, 0, 9));
        d.counts = matrix(&r, 0, integers(&r), 1, groups);
        if (offsets) d.offsets = matrix(&r, 0, integers(&r), 1, groups + 1);
        int64_t *want = (int64_t *)calloc((size_t)groups + 1, 8), before = 0;
        for (int64_t t = 0; t < d.labels.rows; t++)
            for (int64_t j = 0; j < d.labels.cols; j++) {
                const int64_t label = groups > 0 && rng_chance(&r, 90) ? rng_int(&r, 0, favourites ? (groups - 1) / 8 : groups - 1) : nonsense(&r, d.labels.dtype, groups);
                set_whole(&d.labels, t, j, label);
                if (label >= 0 && label < groups) want[label]++;
            }
        remember_all(mark);
        mirror_up(mark);
        tegroup_count_desc dd = d;
        dd.labels = on_device(d.labels);
        dd.counts = on_device(d.counts);
        dd.offsets = on_device(d.offsets);
        RUN_TWICE(mark, tegroup_count(&dd, NULL, error));
        for (int32_t g = 0; g < groups; g++) {
            ASSERT_EQ(want[g], whole(&d.counts, 0, g));
            if (offsets) ASSERT_EQ(before, whole(&d.offsets, 0, g));
            before += want[g];
        }
        if (offsets) ASSERT_EQ(before, whole(&d.offsets, 0, groups));
        free(want);
        may_change(&d.counts);
        if (offsets) may_change(&d.offsets);
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
}

/* ---- layouts of other libraries ------------------------------------------------------------------------------------------ */

/* Groups of rows in a buffer: packed, aligned, at a stride or anywhere. */
static tegroup_shape placed(rng *r, int32_t groups, const int64_t *rows) {
    spec s;
    problem p;
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.groups = groups;
    s.n = s.k = 1;
    s.place = (place_kind)rng_int(r, 0, 3);
    s.alignment = 4;
    s.tail_rows = rng_int(r, 0, 40);
    s.seed = rng_next(r);
    s.m = rows;
    problem_make(&p, &s);
    if (problem_prepare(&p) != TEGROUP_OK) abort();
    return p.a.tensor.shape;
}
static tegroup_matrix maybe(rng *r, int64_t cols) { return rng_chance(r, 70) ? matrix(r, 0, integers(r), 1, cols) : no_matrix(); }

/* What each export is, the CPU says, bit for bit. A snapshot that was written over leads nowhere outside, and one of something
 * else has no rows. */
TEST(moe_gpu, exports_equal_the_cpus) {
    static const int32_t sizes[] = {0, 1, 2, 31, 33, 896, 1025, 4096};
    rng r = rng_seed(5021);
    for (int64_t i = scaled(10) * 16; i > 0; i--) {
        void *mark = guards_mark();
        const int32_t groups = i % 16 < 8 ? sizes[i % 8] : (int32_t)rng_int(&r, 1, 60);
        int64_t *rows = random_rows(&r, groups, groups > 100 ? 9 : 90, 1);
        tegroup_export_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.shape = placed(&r, groups, rows);
        const int lies = rng_chance(&r, 20), other = !lies && rng_chance(&r, 20);
        const int64_t n = d.shape.rows, block = rng_int(&r, 1, 9);
        d.block = block > 1 ? block : rng_int(&r, 0, 1);
        d.counts = matrix(&r, 0, integers(&r), 1, groups);
        d.offsets = maybe(&r, groups + 1), d.ends = maybe(&r, groups), d.labels = maybe(&r, (n + block - 1) / block), d.sorted_ids = maybe(&r, n), d.source_rows = maybe(&r, n);
        if (d.sorted_ids.dtype) {
            d.slots = rng_int(&r, 0, 500);
            d.slot_of_row = matrix(&r, 0, integers(&r), 1, n);
            for (int64_t row = 0; row < n; row++) set_whole(&d.slot_of_row, 0, row, d.slots > 0 && rng_chance(&r, 60) ? rng_int(&r, 0, d.slots - 1) : nonsense(&r, d.slot_of_row.dtype, (int32_t)d.slots));
        }
        if (d.source_rows.dtype) d.from = placed(&r, groups, rows);
        tegroup_snapshot_view v = tegroup_snapshot_read(d.shape.snapshot);
        for (int32_t g = 0; lies && g < groups; g++) {
            if (rng_chance(&r, 40)) *(int64_t *)(uintptr_t)(v.start + g) = nonsense(&r, TEGROUP_DTYPE_I64, 1000);
            if (rng_chance(&r, 40)) *(int64_t *)(uintptr_t)(v.rows + g) = nonsense(&r, TEGROUP_DTYPE_I64, 1000);
            if (rng_chance(&r, 10)) *(int64_t *)(uintptr_t)(v.prefix + g) = nonsense(&r, TEGROUP_DTYPE_I64, 1000);
        }
        mirror_up(mark);
        tegroup_export_desc dd = d;
        dd.space = TEGROUP_SPACE_DEVICE;
        shape_to_device(&dd.shape), shape_to_device(&dd.from);
        tegroup_matrix *matrices[] = {&dd.counts, &dd.offsets, &dd.ends, &dd.labels, &dd.slot_of_row, &dd.sorted_ids, &dd.source_rows};
        for (int m = 0; m < 7; m++) *matrices[m] = on_device(*matrices[m]);
        if (other) MUST(cudaMemset((void *)dd.shape.snapshot, 0, 4)); /* its magic */
        ASSERT_EQ(TEGROUP_OK, tegroup_export(&d, NULL, NULL));
        remember_all(mark);
        if (lies) { /* several groups may own a row then */
            RUN(tegroup_export(&dd, NULL, error));
            mirror_down();
        } else RUN_TWICE(mark, tegroup_export(&dd, NULL, error));
        if (other) {
            for (int32_t g = 0; g < groups; g++) ASSERT_EQ(0, whole(&d.counts, 0, g));
            for (int64_t row = 0; d.labels.dtype && row < d.labels.cols; row++) ASSERT_EQ(-1, whole(&d.labels, 0, row));
            for (int64_t row = 0; d.source_rows.dtype && row < n; row++) ASSERT_EQ(-1, whole(&d.source_rows, 0, row));
        }
        ASSERT_EQ(0, lies || other ? guards_changed() : disturbed(mark));
        guards_release(mark);
    }
}

/* The report is the CPU's, byte for byte; of a snapshot of something else, one of no rows. */
TEST(moe_gpu, skew_equals_the_cpus) {
    static const int32_t sizes[] = {0, 1, 2, 31, 33, 896, 1025, 4096};
    rng r = rng_seed(5023);
    for (int64_t i = scaled(10) * 16; i > 0; i--) {
        void *mark = guards_mark();
        const int32_t groups = i % 16 < 8 ? sizes[i % 8] : (int32_t)rng_int(&r, 1, 60);
        tegroup_skew_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.shape = placed(&r, groups, random_rows(&r, groups, groups > 100 ? 9 : 400, 1));
        d.tile_rows = rng_int(&r, 1, 256);
        d.row_bytes = rng_int(&r, 0, 9000);
        d.result = (tegroup_skew *)guarded(sizeof *d.result);
        const int other = rng_chance(&r, 10);
        mirror_up(mark);
        tegroup_skew_desc dd = d;
        dd.space = TEGROUP_SPACE_DEVICE;
        shape_to_device(&dd.shape);
        dd.result = (tegroup_skew *)device_of(d.result);
        if (other) MUST(cudaMemset((void *)dd.shape.snapshot, 0, 4)); /* its magic */
        ASSERT_EQ(TEGROUP_OK, tegroup_skew_report(&d, NULL, NULL));
        remember_all(mark);
        RUN_TWICE(mark, tegroup_skew_report(&dd, NULL, error));
        if (other) ASSERT_TRUE(d.result->rows == 0 && d.result->empty == groups && d.result->largest == -1 && d.result->largest_over_mean == 0);
        ASSERT_EQ(0, other ? guards_changed() : disturbed(mark));
        guards_release(mark);
    }
}

/* Labels of blocks, slots of rows and where padding begins: counts, starts and the row of each slot are the CPU's, whatever lies. */
TEST(moe_gpu, counts_of_slots_equal_the_cpus) {
    static const int32_t sizes[] = {0, 1, 2, 31, 33, 896, 1025, 4096};
    rng r = rng_seed(5022);
    for (int64_t i = scaled(10) * 16; i > 0; i--) {
        void *mark = guards_mark();
        const int32_t groups = i % 16 < 8 ? sizes[i % 8] : (int32_t)rng_int(&r, 1, 60);
        const int64_t n = rng_int(&r, 0, rng_chance(&r, 20) ? 40000 : 300), tokens = rng_int(&r, 0, 100), k = rng_int(&r, 1, 8), block = rng_int(&r, 1, 64);
        tegroup_count_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.groups = groups;
        const int slotted = rng_chance(&r, 80);
        if (slotted) {
            d.block = block;
            d.slot_of_row = matrix(&r, 0, integers(&r), 1, n);
            d.row_of_slot = matrix(&r, 0, integers(&r), tokens, k);
            d.padded_rows = maybe(&r, 1);
            if (d.padded_rows.dtype) set_whole(&d.padded_rows, 0, 0, rng_chance(&r, 30) ? nonsense(&r, d.padded_rows.dtype, (int32_t)n) : rng_int(&r, 0, n));
            for (int64_t row = 0; row < n; row++)
                set_whole(&d.slot_of_row, 0, row, tokens > 0 && rng_chance(&r, 80) ? rng_int(&r, 0, tokens * k - 1) : nonsense(&r, d.slot_of_row.dtype, (int32_t)(tokens * k)));
        }
        d.labels = matrix(&r, 0, integers(&r), 1, slotted ? (n + block - 1) / block : n);
        for (int64_t b = 0; b < d.labels.cols; b++) set_whole(&d.labels, 0, b, groups > 0 && rng_chance(&r, 80) ? rng_int(&r, 0, groups - 1) : nonsense(&r, d.labels.dtype, groups));
        d.counts = matrix(&r, 0, integers(&r), 1, groups);
        d.offsets = maybe(&r, groups + 1), d.starts = maybe(&r, groups);
        mirror_up(mark);
        tegroup_count_desc dd = d;
        dd.space = TEGROUP_SPACE_DEVICE;
        tegroup_matrix *matrices[] = {&dd.labels, &dd.counts, &dd.offsets, &dd.starts, &dd.slot_of_row, &dd.padded_rows, &dd.row_of_slot};
        for (int m = 0; m < 7; m++) *matrices[m] = on_device(*matrices[m]);
        ASSERT_EQ(TEGROUP_OK, tegroup_count(&d, NULL, NULL));
        remember_all(mark);
        RUN_TWICE(mark, tegroup_count(&dd, NULL, error));
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
}

/* ---- permute and combine --------------------------------------------------------------------------------------------------- */

TEST(moe_gpu, permute_and_combine) {
    rng r = rng_seed(5005);
    for (int64_t i = scaled(12) * 20; i > 0; i--) {
        void *mark = guards_mark();
        const int vectors = i % 2 == 0, mixed = i % 20 >= 16, weighted = rng_chance(&r, 60), lies = rng_chance(&r, 30);
        const tegroup_dtype dtype = dtypes[i / 4 % 4], out = mixed ? dtypes[rng_int(&r, 0, 3)] : dtype, wide = rng_chance(&r, 80) ? wide_of(dtype) : TEGROUP_DTYPE_F64;
        const double u = dtype == TEGROUP_DTYPE_F64 ? 0x1p-53 : 0x1p-24, tiny = dtype == TEGROUP_DTYPE_F64 ? 0x1p-1074 : 0x1p-149;
        const int64_t width = vectors ? 8 * rng_int(&r, 0, 40) : rng_int(&r, 0, 70);
        routing c;
        routing_make(&c, &r, rng_int(&r, 0, rng_chance(&r, 5) ? 700 : 40), (int32_t)rng_int(&r, 1, 9), (int32_t)(rng_chance(&r, 10) ? 64 : rng_int(&r, 1, 9)));
        ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&c.d, NULL, NULL));
        for (int n = 0; lies && n < 10; n++) { /* maps that lie: outside is the same as -1 */
            const int64_t lie = rng_chance(&r, 30) ? (int64_t)rng_next(&r) : rng_chance(&r, 50) ? (rng_chance(&r, 50) ? c.rows : c.tokens * c.k) : -1 - rng_int(&r, 0, 3);
            const int64_t as_slot = c.d.slot_of_row.dtype == TEGROUP_DTYPE_I32 ? (int32_t)lie : lie, as_row = c.d.row_of_slot.dtype == TEGROUP_DTYPE_I32 ? (int32_t)lie : lie;
            if (c.rows > 0 && (as_slot < 0 || as_slot >= c.tokens * c.k)) set_whole(&c.d.slot_of_row, 0, rng_int(&r, 0, c.rows - 1), as_slot);
            if (c.tokens > 0 && (as_row < 0 || as_row >= c.rows)) set_whole(&c.d.row_of_slot, rng_int(&r, 0, c.tokens - 1), rng_int(&r, 0, c.k - 1), as_row);
        }
        tegroup_matrix weights = weighted ? filled(&r, 0, wide, c.tokens, c.k, 1) : no_matrix();
        tegroup_permute_desc p;
        tegroup_combine_desc q;
        tegroup_combine_backward_desc b;
        memset(&p, 0, sizeof p);
        memset(&q, 0, sizeof q);
        memset(&b, 0, sizeof b);
        p.struct_size = sizeof p;
        q.struct_size = sizeof q;
        b.struct_size = sizeof b;
        p.space = q.space = b.space = TEGROUP_SPACE_DEVICE;
        p.k = c.k;
        p.tokens = filled(&r, vectors, dtype, c.tokens, width, 1);
        p.slot_of_row = c.d.slot_of_row;
        p.weights = weights;
        p.permuted = matrix(&r, vectors, out, c.rows, width);
        if (!lies && rng_chance(&r, 50)) p.slot_of_row = no_matrix(), p.row_of_slot = c.d.row_of_slot;
        q.permuted = filled(&r, vectors, dtype, c.rows, width, 1);
        for (int64_t row = 0; row < c.rows; row++) /* rows without a slot must not leak into a sum */
            for (int64_t j = 0; whole(&c.d.slot_of_row, 0, row) < 0 && !lies && j < width; j++) set(&q.permuted, row, j, NAN);
        q.row_of_slot = c.d.row_of_slot;
        q.weights = weights;
        q.tokens = matrix(&r, vectors, out, c.tokens, width);
        q.accumulate = rng_chance(&r, 40) && (out != TEGROUP_DTYPE_F64 || dtype == TEGROUP_DTYPE_F64);
        double *held = (double *)calloc((size_t)(c.tokens * width) + 1, 8); /* what the sums begin with */
        for (int64_t n = 0; q.accumulate && n < c.tokens * width; n++) {
            set(&q.tokens, n / width, n % width, rng_normal(&r));
            held[n] = at(&q.tokens, n / width, n % width);
        }
        b.grad_tokens = filled(&r, vectors, dtype, c.tokens, width, 1);
        b.row_of_slot = c.d.row_of_slot;
        b.weights = weights;
        b.grad_permuted = matrix(&r, vectors, out, c.rows, width);
        if (rng_chance(&r, 70)) {
            b.grad_weights = matrix(&r, 0, wide, c.tokens, c.k);
            b.permuted = q.permuted;
        }
        remember_all(mark);
        mirror_up(mark);
        tegroup_permute_desc pd = p;
        tegroup_combine_desc qd = q;
        tegroup_combine_backward_desc bd = b;
        pd.tokens = on_device(p.tokens); pd.slot_of_row = on_device(p.slot_of_row); pd.row_of_slot = on_device(p.row_of_slot); pd.weights = on_device(weights); pd.permuted = on_device(p.permuted);
        qd.permuted = on_device(q.permuted); qd.row_of_slot = on_device(q.row_of_slot); qd.weights = on_device(weights); qd.tokens = on_device(q.tokens);
        bd.grad_tokens = on_device(b.grad_tokens); bd.permuted = on_device(b.permuted); bd.row_of_slot = on_device(b.row_of_slot); bd.weights = on_device(weights);
        bd.grad_permuted = on_device(b.grad_permuted); bd.grad_weights = on_device(b.grad_weights);
        RUN(tegroup_permute(&pd, NULL, error));
        RUN(tegroup_combine(&qd, NULL, error));
        RUN(tegroup_combine_backward(&bd, NULL, error));
        if (!q.accumulate) RUN_TWICE(mark, tegroup_combine(&qd, NULL, error));
        RUN_TWICE(mark, tegroup_combine_backward(&bd, NULL, error));

        for (int64_t row = 0; row < c.rows; row++) {
            const int64_t slot = whole(&c.d.slot_of_row, 0, row);
            if (slot < 0 || slot >= c.tokens * c.k) continue;
            for (int64_t j = 0; j < width; j++) {
                const double x = at(&p.tokens, slot / c.k, j), want = weight_at(&weights, slot / c.k, slot % c.k) * x;
                if (!weighted && out == dtype) ASSERT_EQ(x, at(&p.permuted, row, j));
                else ASSERT_TRUE(within(at(&p.permuted, row, j), want, 3 * u * fabs(want) + stored(out, want) + 2 * tiny));
            }
            may_change_row(&p.permuted, row);
        }
        for (int64_t t = 0; t < c.tokens; t++)
            for (int64_t j = 0; j < width; j++) {
                double want = held[t * width + j], size = fabs(want);
                for (int32_t s = 0; s < c.k; s++) {
                    const int64_t row = whole(&c.d.row_of_slot, t, s);
                    if (row < 0 || row >= c.rows) continue;
                    want += weight_at(&weights, t, s) * at(&q.permuted, row, j);
                    size += fabs(weight_at(&weights, t, s) * at(&q.permuted, row, j));
                }
                ASSERT_TRUE(within(at(&q.tokens, t, j), want, (c.k + 3) * u * size + stored(out, want) + c.k * tiny));
            }
        may_change(&q.tokens);
        free(held);
        for (int64_t t = 0; t < c.tokens; t++)
            for (int32_t s = 0; s < c.k; s++) {
                const int64_t row = whole(&c.d.row_of_slot, t, s), present = row >= 0 && row < c.rows;
                double dot = 0, size = 0;
                for (int64_t j = 0; j < width && present; j++) {
                    const double g = at(&b.grad_tokens, t, j), want = weight_at(&weights, t, s) * g;
                    ASSERT_TRUE(within(at(&b.grad_permuted, row, j), want, 3 * u * fabs(want) + stored(out, want) + 2 * tiny));
                    dot += g * at(&q.permuted, row, j);
                    size += fabs(g * at(&q.permuted, row, j));
                }
                if (present) may_change_row(&b.grad_permuted, row);
                if (b.grad_weights.dtype != TEGROUP_DTYPE_UNSET) ASSERT_TRUE(within(at(&b.grad_weights, t, s), dot, (double)(width + 3) * u * size + (double)width * tiny + 1e-300));
            }
        if (b.grad_weights.dtype != TEGROUP_DTYPE_UNSET) may_change(&b.grad_weights);
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
    print_totals("permute and combine");
}

/* Rows of types that are not floating point arrive byte for byte, in pieces of 1 to 16 bytes. */
TEST(moe_gpu, permute_of_bytes) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E8M0, TEGROUP_DTYPE_I32, TEGROUP_DTYPE_I64};
    rng r = rng_seed(5016);
    int64_t moved = 0;
    for (int64_t i = scaled(8) * 20; i > 0; i--) {
        void *mark = guards_mark();
        routing c;
        routing_make(&c, &r, rng_int(&r, 0, 60), (int32_t)rng_int(&r, 1, 9), (int32_t)rng_int(&r, 1, 9));
        ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&c.d, NULL, NULL));
        const tegroup_dtype dtype = types[i % 5];
        const int vectors = i / 5 % 2;
        const int64_t width = vectors ? 16 * rng_int(&r, 0, 80) : i / 10 % 2 ? 2 * rng_int(&r, 0, 40) : rng_int(&r, 0, 70);
        tegroup_permute_desc p;
        memset(&p, 0, sizeof p);
        p.struct_size = sizeof p;
        p.space = TEGROUP_SPACE_DEVICE;
        p.k = c.k;
        p.tokens = matrix(&r, vectors || rng_chance(&r, 50), dtype, c.tokens, width);
        p.slot_of_row = c.d.slot_of_row;
        p.permuted = matrix(&r, vectors || rng_chance(&r, 50), dtype, c.rows, width);
        if (rng_chance(&r, 50)) p.slot_of_row = no_matrix(), p.row_of_slot = c.d.row_of_slot;
        const size_t size = size_of(dtype), bytes = (size_t)width * size;
        for (int64_t t = 0; t < c.tokens; t++) for (size_t b = 0; b < bytes; b++) ((unsigned char *)p.tokens.data)[(size_t)place(&p.tokens, t, 0) * size + b] = (unsigned char)rng_next(&r);
        remember_all(mark);
        mirror_up(mark);
        tegroup_permute_desc pd = p;
        pd.tokens = on_device(p.tokens);
        pd.slot_of_row = on_device(p.slot_of_row);
        pd.row_of_slot = on_device(p.row_of_slot);
        pd.permuted = on_device(p.permuted);
        RUN(tegroup_permute(&pd, NULL, error));
        mirror_down();
        for (int64_t row = 0; row < c.rows; row++) {
            const int64_t slot = whole(&c.d.slot_of_row, 0, row);
            if (slot < 0) continue;
            ASSERT_EQ(0, memcmp((char *)p.permuted.data + (size_t)place(&p.permuted, row, 0) * size, (char *)p.tokens.data + (size_t)place(&p.tokens, slot / c.k, 0) * size, bytes));
            may_change_row(&p.permuted, row);
            moved += width > 0;
        }
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
    ASSERT_GT(moved, 0);
}

/* ---- router ---------------------------------------------------------------------------------------------------------------- */

static void router_make(tegroup_router_desc *d, rng *r, int vectors, tegroup_dtype logits, tegroup_dtype probabilities, int64_t tokens, int32_t experts, int32_t k) {
    memset(d, 0, sizeof *d);
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->experts = experts;
    d->k = k;
    d->normalize = (int32_t)rng_int(r, 0, 1);
    d->logits = filled(r, vectors, logits, tokens, experts, 2);
    d->probabilities = matrix(r, vectors, probabilities, tokens, experts);
    d->weights = matrix(r, 0, probabilities, tokens, k);
    d->indices = matrix(r, 0, integers(r), tokens, k);
    d->counts = matrix(r, 0, integers(r), 1, experts);
    d->balance_coefficient = 0.01;
    d->balance_loss = rng_chance(r, 70) ? (double *)guarded(sizeof(double)) : NULL;
}
static tegroup_router_scheme scheme_on_device(tegroup_router_scheme s) {
    s.bias = on_device(s.bias);
    s.given_indices = on_device(s.given_indices);
    s.token_mask = (const uint8_t *)device_of((void *)(uintptr_t)s.token_mask);
    s.valid_tokens = (const int64_t *)device_of((void *)(uintptr_t)s.valid_tokens);
    return s;
}

static tegroup_router_desc router_on_device(tegroup_router_desc d) {
    tegroup_layout layout;
    d.space = TEGROUP_SPACE_DEVICE;
    d.logits = on_device(d.logits);
    d.probabilities = on_device(d.probabilities);
    d.weights = on_device(d.weights);
    d.indices = on_device(d.indices);
    d.counts = on_device(d.counts);
    d.balance_loss = (double *)device_of(d.balance_loss);
    d.z_loss = (double *)device_of(d.z_loss);
    d.loss_gradients = on_device(d.loss_gradients);
    d.scheme = scheme_on_device(d.scheme);
    if (tegroup_router_layout(&d, &layout, NULL) != TEGROUP_OK) abort();
    d.workspace_bytes = layout.total_bytes;
    d.workspace = layout.total_bytes ? arena_take(layout.total_bytes, 0) : NULL;
    return d;
}

/* Widths of each kernel: 128, 256, 512 and 4096 experts in float, 1024 and 4096 in double, which those of number 12 are, too. */
static int32_t some_experts(rng *r, int64_t i) {
    static const int32_t edges[] = {1, 3, 4, 5, 127, 128, 129, 256, 512, 513, 1024, 1028, 4095, 4096};
    return i % 20 < 14 ? edges[i % 20] : (int32_t)rng_int(r, 1, i % 2 ? 128 : 600);
}

TEST(moe_gpu, router_forward) {
    rng r = rng_seed(5006);
    int64_t equal = 0;
    for (int64_t i = scaled(8) * 40; i > 0; i--) {
        void *mark = guards_mark();
        const int vectors = i / 20 % 2 == 0, few = rng_chance(&r, 30);
        const tegroup_dtype in = dtypes[rng_int(&r, 0, 3)], out = i % 7 == 0 || i % 20 == 12 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        const int32_t experts = some_experts(&r, i), most = experts < 64 ? experts : 64, k = (int32_t)(rng_chance(&r, 10) ? most : rng_int(&r, 1, most < 9 ? most : 9));
        const int64_t tokens = rng_int(&r, 0, experts < 200 ? (rng_chance(&r, 10) ? 3000 : 60) : 20);
        const double u = unit_roundoff(out), tiny = smallest_step(out);
        tegroup_router_desc d, host;
        router_make(&d, &r, vectors, in, out, tokens, experts, k);
        if (few) for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) set(&d.logits, t, e, (double)rng_int(&r, -2, 2));
        else if (rng_chance(&r, 20)) /* close together, all or some */
            for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) { if (t % 2 || rng_chance(&r, 50)) set(&d.logits, t, e, 0x1p-22 * at(&d.logits, t, e)); }
        else if (rng_chance(&r, 30)) /* far apart, or masked out */
            for (int64_t t = 0; t < tokens; t++)
                for (int32_t e = 0; e < experts; e++) set(&d.logits, t, e, e > 0 && rng_chance(&r, 20) ? -(double)INFINITY : (t % 2 ? 1000 : -1000) + 16 * at(&d.logits, t, e));
        remember_all(mark);
        mirror_up(mark);
        const tegroup_router_desc dd = router_on_device(d);
        RUN_TWICE(mark, tegroup_router(&dd, NULL, error));

        double *mean = (double *)calloc((size_t)experts, sizeof(double)), loss = 0, loss_size = 0;
        int64_t *counts = (int64_t *)calloc((size_t)experts, 8);
        char *taken = (char *)malloc((size_t)experts);
        for (int64_t t = 0; t < tokens; t++) {
            double largest = -INFINITY, sum = 0, chosen = 0;
            memset(taken, 0, (size_t)experts);
            for (int32_t e = 0; e < experts; e++) largest = fmax(largest, at(&d.logits, t, e));
            for (int32_t e = 0; e < experts; e++) sum += exp(at(&d.logits, t, e) - largest);
            for (int32_t e = 0; e < experts; e++) {
                const double x = at(&d.logits, t, e) - largest, p = exp(x) / sum, far = isinf(x) ? 0 : fabs(x);
                const double read = in == TEGROUP_DTYPE_F64 && out == TEGROUP_DTYPE_F32 && !isinf(x) ? fabs(largest) + fabs(at(&d.logits, t, e)) : 0; /* rounded as they are read */
                ASSERT_TRUE(within(at(&d.probabilities, t, e), p, (experts + 3 * far + read + 30) * u * p + 2 * tiny));
                mean[e] += p / (double)tokens;
            }
            for (int32_t j = 0; j < k; j++) {
                int32_t best = -1;
                for (int32_t f = 0; f < experts; f++)
                    if (!taken[f] && (best < 0 || at(&d.probabilities, t, f) > at(&d.probabilities, t, best)
                                      || (at(&d.probabilities, t, f) == at(&d.probabilities, t, best) && at(&d.logits, t, f) > at(&d.logits, t, best)))) best = f;
                for (int32_t f = 0; f < experts; f++) equal += f != best && !taken[f] && at(&d.probabilities, t, f) == at(&d.probabilities, t, best);
                ASSERT_EQ(best, whole(&d.indices, t, j));
                taken[best] = 1;
                counts[best]++;
                chosen += at(&d.probabilities, t, best);
            }
            for (int32_t j = 0; j < k; j++) {
                const double p = at(&d.probabilities, t, whole(&d.indices, t, j)), w = at(&d.weights, t, j);
                if (!d.normalize) ASSERT_EQ(p, w);
                else ASSERT_TRUE(within(w, p / chosen, (k + 4) * u * p / chosen + tiny / chosen + tiny));
            }
        }
        for (int32_t e = 0; e < experts; e++) {
            ASSERT_EQ(counts[e], whole(&d.counts, 0, e));
            loss += tokens > 0 ? 0.01 * experts * (double)counts[e] / (double)(tokens * k) * mean[e] : 0;
        }
        loss_size = loss;
        if (d.balance_loss) {
            ASSERT_TRUE(within(*d.balance_loss, loss, (double)(experts + 200) * u * loss_size + ((double)(tokens + experts) + 10) * 0x1p-53 * loss_size + 1e-300));
            memcpy(guarded_find(d.balance_loss)->copy, d.balance_loss, sizeof(double));
        }
        free(mean); free(counts); free(taken);
        if (few) { /* logits that are equal or far apart leave no doubt: the choice is the CPU's */
            host = d;
            int32_t *chosen = (int32_t *)malloc((size_t)(tokens * k + 1) * 4);
            for (int64_t s = 0; s < tokens * k; s++) chosen[s] = (int32_t)whole(&d.indices, s / k, s % k);
            host.weights = matrix(&r, 0, out, tokens, k);
            host.probabilities = matrix(&r, 0, out, tokens, experts);
            host.indices = matrix(&r, 0, TEGROUP_DTYPE_I32, tokens, k);
            host.counts = matrix(&r, 0, TEGROUP_DTYPE_I64, 1, experts);
            host.balance_loss = NULL;
            ASSERT_EQ(TEGROUP_OK, tegroup_router(&host, NULL, NULL));
            for (int64_t s = 0; s < tokens * k; s++) ASSERT_EQ(whole(&host.indices, s / k, s % k), chosen[s]);
            free(chosen);
        }
        may_change(&d.probabilities); may_change(&d.weights); may_change(&d.indices); may_change(&d.counts);
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
    ASSERT_GT(equal, 0);
    print_totals("router");
}

/* Any outputs may be left out, and the others have the bits that they have with all of them. */
TEST(moe_gpu, router_writes_what_is_wanted) {
    rng r = rng_seed(5017);
    for (int64_t i = scaled(4) * 15; i > 0; i--) {
        void *mark = guards_mark();
        const int wanted = (int)(i % 15) + 1; /* a bit for each of the four */
        const tegroup_dtype in = dtypes[rng_int(&r, 0, 3)],
                            real = wanted & 3 ? dtypes[rng_int(&r, 2, 3)] : in == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        const int32_t experts = some_experts(&r, i % 20), k = (int32_t)rng_int(&r, 1, experts < 9 ? experts : 9);
        const int64_t tokens = rng_int(&r, 0, experts < 200 ? 300 : 20);
        tegroup_router_desc d, some;
        router_make(&d, &r, (int)(i / 2 % 2), in, real, tokens, experts, k);
        if (!d.balance_loss) d.balance_loss = (double *)guarded(sizeof(double));
        if (rng_chance(&r, 40)) for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < experts; e++) set(&d.logits, t, e, (double)rng_int(&r, -2, 2));
        some = d;
        tegroup_matrix *all_out[] = {&d.probabilities, &d.weights, &d.indices, &d.counts}, *some_out[] = {&some.probabilities, &some.weights, &some.indices, &some.counts};
        for (int o = 0; o < 4; o++) *some_out[o] = wanted >> o & 1 ? matrix(&r, 0, some_out[o]->dtype, some_out[o]->rows, some_out[o]->cols) : no_matrix();
        some.balance_loss = (wanted & 9) == 9 ? (double *)guarded(sizeof(double)) : NULL;
        remember_all(mark);
        mirror_up(mark);
        const tegroup_router_desc dd = router_on_device(d), sd = router_on_device(some);
        RUN(tegroup_router(&dd, NULL, error));
        RUN_TWICE(mark, tegroup_router(&sd, NULL, error));
        for (int o = 0; o < 4; o++)
            for (int64_t row = 0; row < all_out[o]->rows; row++) {
                const size_t size = size_of(all_out[o]->dtype);
                may_change_row(all_out[o], row);
                if (!(wanted >> o & 1)) continue;
                ASSERT_EQ(0, memcmp((char *)some_out[o]->data + (size_t)place(some_out[o], row, 0) * size, (char *)all_out[o]->data + (size_t)place(all_out[o], row, 0) * size, (size_t)all_out[o]->cols * size));
                may_change_row(some_out[o], row);
            }
        memcpy(guarded_find(d.balance_loss)->copy, d.balance_loss, sizeof(double));
        if (some.balance_loss) {
            ASSERT_EQ(*some.balance_loss, *d.balance_loss);
            memcpy(guarded_find(some.balance_loss)->copy, some.balance_loss, sizeof(double));
        }
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
}

/* Every type that holds the row, every number of choices, and rows of every width that a kernel has: the other experts stand behind the
 * eight, or before them, and are far below. Between tokens whose logits are all different. */
TEST(moe_gpu, router_ties) {
    enum { TOKENS = 40 };
    static const int32_t widths[] = {8, 12, 128, 256, 512, 1024, 4096};
    rng r = rng_seed(5014);
    for (int i = 0; i < TIES; i++)
        for (int n = 0; n < 7 * 16; n++) {
            void *mark = guards_mark();
            const int32_t experts = widths[n / 16], before = n % 2 * (experts - 8), k = (int32_t)rng_int(&r, 1, 8);
            const tegroup_dtype in = dtypes[n / 2 % 4], out = n / 8 % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
            const int lower = !isnan(ties[i].logits[3]) && ties[i].logits[3] < INFINITY; /* what is chosen is among the eight, but where nothing is a number */
            const int64_t at_token = rng_int(&r, 0, TOKENS - 1);
            tegroup_router_desc d;
            if (i >= TIES_OF_HALVES && in != TEGROUP_DTYPE_F64) { guards_release(mark); continue; }
            router_make(&d, &r, n % 2, in, out, TOKENS, experts, k);
            d.balance_loss = NULL;
            int32_t finite = 0;
            for (int32_t e = 0; e < 8; e++) finite += ties[i].logits[e] > -(double)INFINITY;
            for (int32_t e = 0; e < experts; e++) set(&d.logits, at_token, e, e >= before && e < before + 8 ? ties[i].logits[e - before] : -3000 - e % 7);
            mirror_up(mark);
            const tegroup_router_desc dd = router_on_device(d);
            RUN_TWICE(mark, tegroup_router(&dd, NULL, error));
            for (int32_t j = 0; j < k; j++) {
                if (lower && finite > j) ASSERT_EQ(before + ties[i].order[j], whole(&d.indices, at_token, j));
                if (!lower) ASSERT_EQ(j, whole(&d.indices, at_token, j));
                for (int64_t t = 0; t < TOKENS; t++) ASSERT_TRUE(whole(&d.indices, t, j) >= 0 && whole(&d.indices, t, j) < experts);
            }
            ASSERT_EQ(0, guards_changed());
            guards_release(mark);
        }
}

/* Logits that are no numbers: the CPU's choice, and NaN where the CPU has NaN. */
TEST(moe_gpu, router_survives_nan) {
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1, -1, 3e38};
    rng r = rng_seed(5007);
    for (int64_t i = scaled(20) * 5; i > 0; i--) {
        void *mark = guards_mark();
        const int32_t experts = i % 5 == 0 ? 600 : i % 5 == 1 ? 200 : (int32_t)rng_int(&r, 1, 12), k = (int32_t)rng_int(&r, 1, experts < 12 ? experts : 12);
        const tegroup_dtype out = i % 3 == 0 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        tegroup_router_desc d;
        router_make(&d, &r, 0, out, out, 9, experts, k);
        d.balance_loss = NULL;
        for (int64_t t = 0; t < 9; t++) for (int32_t e = 0; e < experts; e++) set(&d.logits, t, e, rng_chance(&r, t * 4) ? odd[rng_int(&r, 0, 5)] : (double)rng_int(&r, -2, 2));
        mirror_up(mark);
        const tegroup_router_desc dd = router_on_device(d);
        ASSERT_EQ(TEGROUP_OK, tegroup_router(&d, NULL, NULL));
        remember_all(mark);
        RUN(tegroup_router(&dd, NULL, error));
        mirror_down();
        const tegroup_matrix *floats[] = {&d.probabilities, &d.weights};
        for (int m = 0; m < 2; m++) {
            const char *want = (const char *)guarded_memory(floats[m]->data);
            for (int64_t t = 0; t < 9; t++)
                for (int64_t j = 0; j < floats[m]->cols; j++) {
                    const double w = load(out, want, place(floats[m], t, j)), g = at(floats[m], t, j);
                    ASSERT_TRUE(isnan(w) ? isnan(g) : fabs(g - w) <= 1e-4 * w + smallest_step(out));
                }
            may_change(floats[m]);
        }
        ASSERT_EQ(0, disturbed(mark)); /* indices and counts */
        guards_release(mark);
    }
}

/* The experts that a token chose, with the gradients of their weights. Where no expert is named (-1) one was dropped: the most probable of
 * those that the token does not name, of equals the lowest, with a gradient of 0. */
static void choices_of(const tegroup_router_backward_desc *b, int64_t t, int32_t *expert, double *grad) {
    char *named = (char *)calloc((size_t)b->experts, 1);
    for (int32_t j = 0; j < b->k; j++) {
        expert[j] = (int32_t)tegroup_impl_clamp(whole(&b->indices, t, j), -1, b->experts);
        grad[j] = at(&b->grad_weights, t, j);
        if (expert[j] >= 0 && expert[j] < b->experts) named[expert[j]] = 1;
    }
    for (int32_t j = 0; j < b->k; j++) {
        if (expert[j] >= 0 && expert[j] < b->experts) continue;
        expert[j] = -1;
        grad[j] = 0;
        for (int32_t e = 0; e < b->experts; e++)
            if (!named[e] && (expert[j] < 0 || at(&b->probabilities, t, e) > at(&b->probabilities, t, expert[j]))) expert[j] = e;
        named[expert[j]] = 1;
    }
    free(named);
}

/* ---- router schemes -------------------------------------------------------------------------------------------------------- */

#define SCHEME_WORST
#define SCHEME_MATRIX(r, dtype, rows, cols) matrix(r, rng_chance(r, 50), dtype, rows, cols)
#include "schemes.h"

/* Scores of 1/2, and biases of some units of their last place, equal ones among them: the largest sum first, of equal
 * ones the lower expert, of those of the groups that stay. */
TEST(moe_gpu, router_choices_that_are_close) {
    enum { TOKENS = 3, WIDTHS = 15, DIVISORS = 10, MOST = 1100 };
    static const int32_t widths[WIDTHS] = {8, 32, 40, 60, 128, 144, 160, 165, 192, 256, 384, 512, 896, 1024, MOST};
    static const int32_t divisors[DIVISORS] = {2, 3, 4, 5, 8, 12, 32, 33, 48, 64};
    rng r = rng_seed(5021);
    int64_t many = 0, whole_rows = 0;
    for (int64_t i = scaled(60) * WIDTHS; i > 0; i--) {
        void *mark = guards_mark();
        const int32_t experts = widths[i % WIDTHS];
        const int32_t some = divisors[scaled(60) > 1 ? rng_int(&r, 0, DIVISORS - 1) : i % DIVISORS];
        const int32_t n_group = i % 3 != 0 && experts % some == 0 ? some : 0;
        const int32_t size = n_group ? experts / n_group : experts;
        const int32_t topk_group = n_group ? (int32_t)rng_int(&r, 1, n_group) : 0;
        const int32_t left = n_group ? topk_group * size : experts, most = left < 64 ? left : 64;
        const int32_t k = i % 5 == 0 ? most : rng_chance(&r, 30) ? 1 : (int32_t)rng_int(&r, 1, most);
        const int32_t spread = (int32_t)rng_int(&r, 1, rng_chance(&r, 50) ? 2 * experts : 40 * experts);
        tegroup_router_desc d;
        router_make(&d, &r, 0, dtypes[rng_int(&r, 1, 3)], TEGROUP_DTYPE_F32, TOKENS, experts, k);
        d.balance_loss = NULL;
        d.balance_coefficient = 0;
        d.scheme.score = TEGROUP_SCORE_SIGMOID;
        d.scheme.n_group = n_group;
        d.scheme.topk_group = topk_group;
        if (n_group && rng_chance(&r, 50)) d.scheme.group_score = TEGROUP_GROUP_SCORE_MAX;
        d.scheme.bias = matrix(&r, 0, TEGROUP_DTYPE_F32, 1, experts);
        static int64_t unit[MOST];
        float first[64], second[64], by[64]; /* a group's largest sums, and what it is chosen by */
        for (int32_t g = 0; g < n_group; g++) first[g] = second[g] = 0;
        for (int32_t e = 0; e < experts; e++) {
            unit[e] = rng_int(&r, 0, spread);
            set(&d.scheme.bias, 0, e, (double)unit[e] * 0x1p-24);
            for (int64_t t = 0; t < TOKENS; t++) set(&d.logits, t, e, 0);
            const float sum = (float)(0.5 + (double)unit[e] * 0x1p-24);
            const int32_t g = e / size;
            if (!n_group) continue;
            if (sum > second[g]) second[g] = sum < first[g] ? sum : first[g];
            if (sum > first[g]) first[g] = sum;
        }
        const int best = d.scheme.group_score == TEGROUP_GROUP_SCORE_MAX || size == 1;
        for (int32_t g = 0; g < n_group; g++) by[g] = best ? first[g] : (float)((double)first[g] + second[g]);
        for (int32_t g = 0; g < n_group; g++) {
            int32_t better = 0;
            for (int32_t h = 0; h < n_group; h++) better += by[h] > by[g] || (by[h] == by[g] && h < g);
            for (int32_t e = g * size; better >= topk_group && e < (g + 1) * size; e++) unit[e] = -1;
        }
        mirror_up(mark);
        const tegroup_router_desc dd = router_on_device(d);
        RUN_TWICE(mark, tegroup_router(&dd, NULL, error));
        for (int32_t j = 0; j < k; j++) {
            int32_t want = 0;
            for (int32_t e = 1; e < experts; e++) if (unit[e] > unit[want]) want = e;
            unit[want] = -1;
            for (int64_t t = 0; t < TOKENS; t++) ASSERT_EQ(want, whole(&d.indices, t, j));
        }
        ASSERT_EQ(0, guards_changed());
        guards_release(mark);
        many += n_group > 32;
        whole_rows += k == left;
    }
    ASSERT_GT(many, 0);
    ASSERT_GT(whole_rows, 0);
}

/* Any scheme and its gradient, as the formulas have them of what the GPU wrote; the second run in a row has the first one's bits. */
TEST(moe_gpu, router_schemes) {
    rng r = rng_seed(5020);
    int64_t odd = 0;
    for (int64_t i = scaled(10) * 40; i > 0; i--) {
        void *mark = guards_mark();
        const tegroup_dtype in = dtypes[rng_int(&r, 0, 3)], real = in == TEGROUP_DTYPE_F64 || rng_chance(&r, 20) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, out = dtypes[rng_int(&r, 0, 3)];
        int64_t *counts = (int64_t *)scratch(8 * SCHEME_EXPERTS);
        tegroup_router_desc d;
        scheme_make(&d, &r, in, real, rng_chance(&r, 50) ? 1 : rng_int(&r, 0, rng_chance(&r, 10) ? 90 : 5), rng_int(&r, 0, rng_chance(&r, 10) ? 300 : 9));
        const int64_t tokens = d.logits.rows;
        const int few = rng_chance(&r, 30), beyond = rng_chance(&r, 15);
        for (int64_t t = 0; few && t < tokens; t++) for (int32_t e = 0; e < d.experts; e++) set(&d.logits, t, e, (double)rng_int(&r, -2, 2));
        for (int64_t t = 0; beyond && t < tokens; t++) for (int32_t e = 0; e < d.experts; e++) if (rng_chance(&r, 5)) set(&d.logits, t, e, rng_chance(&r, 50) ? NAN : INFINITY);
        if (rng_chance(&r, 15)) scheme_far_below(&d, &r);
        tegroup_router_backward_desc b = scheme_backward_of(&d, filled(&r, 0, real, tokens, d.k, 1), matrix(&r, 0, out, tokens, d.experts));
        b.loss_scale = rng_chance(&r, 50) ? 0 : 3;
        if (b.scheme.z_coefficient == 0 && rng_chance(&r, 30)) b.loss_gradients = no_matrix();
        remember_all(mark);
        mirror_up(mark);
        tegroup_router_desc dd = router_on_device(d);
        tegroup_router_backward_desc bd = b;
        bd.space = TEGROUP_SPACE_DEVICE;
        bd.probabilities = on_device(b.probabilities), bd.indices = on_device(b.indices), bd.grad_weights = on_device(b.grad_weights), bd.grad_logits = on_device(b.grad_logits);
        bd.loss_gradients = on_device(b.loss_gradients), bd.logits = on_device(b.logits), bd.scheme = dd.scheme;
        RUN(tegroup_router(&dd, NULL, error));
        RUN(tegroup_router_backward(&bd, NULL, error));
        RUN_TWICE(mark, tegroup_router(&dd, NULL, error));
        RUN_TWICE(mark, tegroup_router_backward(&bd, NULL, error));
        if (beyond) { /* not one that does not exist, in the order of what was written */
            scheme_expert *order = (scheme_expert *)scratch(sizeof *order * SCHEME_EXPERTS);
            for (int64_t t = 0; t < tokens; t++) {
                if (!scheme_there(&d.scheme, t)) continue;
                scheme_sorted(&d.scheme, d.experts, &d.probabilities, &d.logits, t, order);
                for (int32_t j = 0; j < d.k; j++) ASSERT_EQ(whole(&d.indices, t, j), d.scheme.given_indices.dtype ? scheme_index(&d.scheme.given_indices, t, j, d.experts) : order[j].e);
                odd++;
            }
        } else {
            ASSERT_STREQ("", scheme_wrong(&d, counts));
            ASSERT_STREQ("", scheme_losses_wrong(&d));
            ASSERT_STREQ("", scheme_gradient_wrong(&b));
        }
        may_change(&d.probabilities), may_change(&d.weights), may_change(&d.indices), may_change(&d.counts), may_change(&d.loss_gradients), may_change(&b.grad_logits);
        memcpy(guarded_find(d.balance_loss)->copy, d.balance_loss, 8);
        memcpy(guarded_find(d.z_loss)->copy, d.z_loss, 8);
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
    ASSERT_GT(odd, 0);
    print_totals("router schemes");
}

TEST(moe_gpu, router_gradient) {
    rng r = rng_seed(5008);
    for (int64_t i = scaled(8) * 40; i > 0; i--) {
        void *mark = guards_mark();
        const int vectors = i / 20 % 2 == 0, lies = rng_chance(&r, 30);
        const tegroup_dtype out = dtypes[rng_int(&r, 0, 3)], p = i % 7 == 0 || i % 20 == 12 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
        const int32_t experts = some_experts(&r, i), most = experts < 64 ? experts : 64, k = (int32_t)(rng_chance(&r, 10) ? most : rng_int(&r, 1, most < 9 ? most : 9));
        const int64_t tokens = rng_int(&r, 0, experts < 200 ? (rng_chance(&r, 10) ? 3000 : 60) : 20);
        const double u = unit_roundoff(p), tiny = smallest_step(p);
        tegroup_router_desc d;
        tegroup_router_backward_desc b;
        router_make(&d, &r, vectors, TEGROUP_DTYPE_F32, p, tokens, experts, k);
        ASSERT_EQ(TEGROUP_OK, tegroup_router(&d, NULL, NULL));
        for (int64_t n = 0; lies && tokens > 0 && n < 10 + tokens * k / 8; n++) /* twice the same, or dropped */
            set_whole(&d.indices, rng_int(&r, 0, tokens - 1), rng_int(&r, 0, k - 1), rng_chance(&r, 30) ? rng_int(&r, 0, experts - 1) : nonsense(&r, d.indices.dtype, experts));
        memset(&b, 0, sizeof b);
        b.struct_size = sizeof b;
        b.space = TEGROUP_SPACE_DEVICE;
        b.experts = experts;
        b.k = k;
        b.normalize = d.normalize;
        b.probabilities = d.probabilities;
        b.indices = d.indices;
        b.counts = d.counts;
        b.grad_weights = filled(&r, 0, p, tokens, k, 1);
        b.grad_logits = matrix(&r, vectors, out, tokens, experts);
        b.balance_coefficient = rng_chance(&r, 30) ? 0 : 0.01;
        b.loss_scale = rng_chance(&r, 50) ? 0 : 3;
        if (b.balance_coefficient == 0) b.counts = no_matrix();
        const double scale = b.loss_scale != 0 ? b.loss_scale : 1;
        remember_all(mark);
        mirror_up(mark);
        tegroup_router_backward_desc bd = b;
        bd.probabilities = on_device(b.probabilities);
        bd.indices = on_device(b.indices);
        bd.counts = on_device(b.counts);
        bd.grad_weights = on_device(b.grad_weights);
        bd.grad_logits = on_device(b.grad_logits);
        RUN_TWICE(mark, tegroup_router_backward(&bd, NULL, error));
        double *g = (double *)malloc((size_t)experts * 8), *size = (double *)malloc((size_t)experts * 8);
        for (int64_t t = 0; t < tokens; t++) {
            double chosen = 0, dot = 0, dot_size = 0, mean = 0, mean_size = 0, w[64];
            int32_t expert[64];
            choices_of(&b, t, expert, w);
            for (int32_t j = 0; j < k; j++) chosen += at(&b.probabilities, t, expert[j]);
            for (int32_t j = 0; j < k; j++) {
                dot += w[j] * at(&b.probabilities, t, expert[j]) / chosen;
                dot_size += fabs(w[j]) * at(&b.probabilities, t, expert[j]) / chosen;
            }
            for (int32_t e = 0; e < experts; e++) {
                g[e] = b.balance_coefficient == 0 ? 0 : scale * b.balance_coefficient * experts * (double)whole(&d.counts, 0, e) / (double)(tokens * k) / (double)tokens;
                size[e] = fabs(g[e]);
            }
            for (int32_t j = 0; j < k; j++) {
                g[expert[j]] += b.normalize ? (w[j] - dot) / chosen : w[j];
                size[expert[j]] += b.normalize ? (fabs(w[j]) + dot_size) / chosen : fabs(w[j]);
            }
            for (int32_t e = 0; e < experts; e++) {
                mean += at(&b.probabilities, t, e) * g[e];
                mean_size += at(&b.probabilities, t, e) * size[e];
            }
            for (int32_t e = 0; e < experts; e++) {
                const double q = at(&b.probabilities, t, e), want = q * (g[e] - mean);
                ASSERT_TRUE(within(at(&b.grad_logits, t, e), want, (experts + 4 * k + 20) * u * q * (size[e] + mean_size) + stored(out, want) + tiny * (2 + experts)));
            }
        }
        free(g); free(size);
        may_change(&b.grad_logits);
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
    print_totals("router gradient");
}

/* ---- a whole step in a graph ------------------------------------------------------------------------------------------------- */

/* Router, counts, prepare, permutation, permute, SwiGLU and combine, captured once and replayed with other logits: bit for bit what the
 * calls give one by one. */
TEST(moe_gpu, captured_step) {
    enum { TOKENS = 200, EXPERTS = 24, K = 3, WIDTH = 64 };
    rng r = rng_seed(5009);
    void *mark = guards_mark();
    tegroup_router_desc d;
    tegroup_layout layout;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    router_make(&d, &r, 1, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, TOKENS, EXPERTS, K);
    d.logits.ld = d.counts.ld = 0;
    if (!d.balance_loss) d.balance_loss = (double *)guarded(8);
    tegroup_matrix tokens = filled(&r, 1, TEGROUP_DTYPE_BF16, TOKENS, WIDTH, 1), permuted = matrix(&r, 1, TEGROUP_DTYPE_BF16, TOKENS * K, WIDTH),
                   gated = matrix(&r, 1, TEGROUP_DTYPE_BF16, TOKENS * K, WIDTH / 2), combined = matrix(&r, 1, TEGROUP_DTYPE_BF16, TOKENS, WIDTH / 2),
                   row_of_slot = matrix(&r, 0, TEGROUP_DTYPE_I64, TOKENS, K), slot_of_row = matrix(&r, 0, TEGROUP_DTYPE_I64, 1, TOKENS * K);
    const tegroup_sizes counted = tegroup_sizes_of(NULL, d.counts.dtype, TEGROUP_SPACE_DEVICE);
    tegroup_shape rows = tegroup_shape_of(EXPERTS, TOKENS * K, 0, counted);
    ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&rows, &layout, NULL));
    const size_t snapshot_bytes = layout.total_bytes;
    void *snapshot = guarded(snapshot_bytes);
    for (int64_t t = 0; t < TOKENS; t++) for (int64_t e = 0; e < EXPERTS; e++) set(&d.logits, t, e, rng_normal(&r));
    mirror_up(mark);
    const tegroup_router_desc dd = router_on_device(d);
    rows.row_sizes.data = dd.counts.data;
    rows.snapshot = snapshot = device_of(snapshot); /* where each step prepares it */
    tegroup_permutation_desc m;
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m;
    m.space = TEGROUP_SPACE_DEVICE;
    m.indices = dd.indices;
    m.shape = rows;
    m.row_of_slot = on_device(row_of_slot);
    m.slot_of_row = on_device(slot_of_row);
    ASSERT_EQ(TEGROUP_OK, tegroup_permutation_layout(&m, &layout, NULL));
    m.workspace_bytes = layout.total_bytes;
    m.workspace = arena_take(layout.total_bytes, 0);
    tegroup_count_desc counting; /* of the router's own choice, so the counts are the router's */
    memset(&counting, 0, sizeof counting);
    counting.struct_size = sizeof counting;
    counting.space = TEGROUP_SPACE_DEVICE;
    counting.groups = EXPERTS;
    counting.labels = dd.indices;
    counting.counts = tegroup_matrix_of(arena_take(8 * EXPERTS, 0), 1, EXPERTS, d.counts.dtype);
    counting.starts = tegroup_matrix_of(arena_take(8 * EXPERTS, 0), 1, EXPERTS, TEGROUP_DTYPE_I64);
    tegroup_export_desc exported;
    memset(&exported, 0, sizeof exported);
    exported.struct_size = sizeof exported;
    exported.space = TEGROUP_SPACE_DEVICE;
    exported.shape = rows;
    exported.labels = tegroup_matrix_of(arena_take(8 * (size_t)rows.rows, 0), 1, rows.rows, TEGROUP_DTYPE_I64);
    exported.offsets = tegroup_matrix_of(arena_take(8 * (EXPERTS + 1), 0), 1, EXPERTS + 1, TEGROUP_DTYPE_I64);
    tegroup_skew_desc skew;
    memset(&skew, 0, sizeof skew);
    skew.struct_size = sizeof skew;
    skew.space = TEGROUP_SPACE_DEVICE;
    skew.shape = rows;
    skew.tile_rows = 128;
    skew.result = (tegroup_skew *)arena_take(sizeof *skew.result, 0);
    tegroup_permute_desc p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.space = TEGROUP_SPACE_DEVICE;
    p.k = K;
    p.tokens = on_device(tokens);
    p.slot_of_row = m.slot_of_row;
    p.permuted = on_device(permuted);
    tegroup_activation_desc a;
    memset(&a, 0, sizeof a);
    a.struct_size = sizeof a;
    a.space = TEGROUP_SPACE_DEVICE;
    a.activation = TEGROUP_ACTIVATION_SWIGLU;
    a.snapshot = snapshot;
    a.input = p.permuted;
    a.output = on_device(gated);
    tegroup_combine_desc q;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = TEGROUP_SPACE_DEVICE;
    q.permuted = a.output;
    q.row_of_slot = m.row_of_slot;
    q.weights = dd.weights;
    q.tokens = on_device(combined);
    tegroup_validate_desc v;
    memset(&v, 0, sizeof v);
    v.struct_size = sizeof v;
    v.space = TEGROUP_SPACE_DEVICE;
    v.tensor = tegroup_tensor_of(rows, WIDTH / 2, TEGROUP_DTYPE_BF16, a.output.data);
    v.tensor.ld = gated.ld;
    v.result = (tegroup_validation *)(arena_take(sizeof(tegroup_validation), 0));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto step = [&]() {
        return tegroup_router(&dd, stream, NULL) == TEGROUP_OK && tegroup_count(&counting, stream, NULL) == TEGROUP_OK
               && tegroup_shape_prepare(&rows, snapshot, snapshot_bytes, stream, NULL) == TEGROUP_OK
               && tegroup_permutation_make(&m, stream, NULL) == TEGROUP_OK && tegroup_export(&exported, stream, NULL) == TEGROUP_OK && tegroup_skew_report(&skew, stream, NULL) == TEGROUP_OK
               && tegroup_permute(&p, stream, NULL) == TEGROUP_OK && tegroup_activation_forward(&a, stream, NULL) == TEGROUP_OK && tegroup_combine(&q, stream, NULL) == TEGROUP_OK
               && tegroup_validate(&v, stream, NULL) == TEGROUP_OK;
    };
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_TRUE(step());
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    unsigned char *eager = (unsigned char *)malloc(arena_used), *start = (unsigned char *)malloc(arena_used), *replayed = (unsigned char *)malloc(arena_used);
    MUST(cudaMemcpy(start, arena, arena_used, cudaMemcpyDeviceToHost));
    for (int64_t i = scaled(50) + 1; i > 0; i--) {
        uint16_t *logits = (uint16_t *)(start + ((unsigned char *)dd.logits.data - arena));
        for (int64_t t = 0; t < TOKENS * EXPERTS; t++) logits[t] = encode16(TEGROUP_DTYPE_BF16, 3 * rng_normal(&r));
        copy_up(arena, start, arena_used);
        MUST(cudaDeviceSynchronize()); /* the copy may still be on its way, and `stream` does not wait for it */
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(replayed, arena, arena_used, cudaMemcpyDeviceToHost));
        copy_up(arena, start, arena_used);
        MUST(cudaDeviceSynchronize()); /* the copy may still be on its way, and `stream` does not wait for it */
        ASSERT_TRUE(step());
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(eager, arena, arena_used, cudaMemcpyDeviceToHost));
        ASSERT_EQ(0, memcmp(eager, replayed, arena_used));
        ASSERT_EQ(0, memcmp(eager + ((unsigned char *)counting.counts.data - arena), eager + ((unsigned char *)dd.counts.data - arena), EXPERTS * size_of(d.counts.dtype)));
        const tegroup_validation *found = (const tegroup_validation *)(eager + ((unsigned char *)v.result - arena));
        ASSERT_EQ(TEGROUP_VALIDATION_MAGIC, found->magic);
        if (found->status & ~TEGROUP_VALIDATION_TAIL) fprintf(stderr, "snapshot status %x\n", found->snapshot_status);
        ASSERT_EQ(0u, found->status & ~TEGROUP_VALIDATION_TAIL);
    }
    free(eager); free(start); free(replayed);
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    guards_release(mark);
}

/* ---- validate ------------------------------------------------------------------------------------------------------------------ */

/* The record is the CPU's, byte for byte, whatever the sizes say. */
TEST(moe_gpu, validate_equals_the_cpus) {
    rng r = rng_seed(5010);
    int64_t found = 0;
    for (int64_t i = scaled(20) * 16; i > 0; i--) {
        void *mark = guards_mark();
        const tegroup_dtype dtype = dtypes[i % 4];
        const int ragged = i % 8 < 6;
        tegroup_validate_desc v;
        memset(&v, 0, sizeof v);
        v.struct_size = sizeof v;
        v.space = TEGROUP_SPACE_HOST;
        v.tensor.dtype = dtype;
        v.tensor.shape.cols = rng_int(&r, 0, 80);
        int64_t rows;
        if (ragged) {
            spec s;
            problem p;
            memset(&s, 0, sizeof s);
            s.op = TEGROUP_OP_FORWARD;
            s.groups = (int32_t)(rng_chance(&r, 5) ? 4096 : rng_int(&r, 0, 60));
            s.n = s.k = 1;
            s.place = (place_kind)rng_int(&r, 0, 3);
            s.alignment = 4;
            s.tail_rows = rng_int(&r, 0, 40);
            s.seed = rng_next(&r);
            s.m = random_rows(&r, s.groups, 9, 1);
            problem_make(&p, &s);
            if (problem_prepare(&p) != TEGROUP_OK) abort();
            const int64_t cols = v.tensor.shape.cols;
            v.tensor.shape = p.a.tensor.shape;
            v.tensor.shape.cols = cols;
            rows = v.tensor.shape.rows;
            tegroup_snapshot_header *header = (tegroup_snapshot_header *)p.a.snapshot;
            if (header != NULL && rng_chance(&r, 30)) {
                tegroup_snapshot_view view = tegroup_snapshot_read(header);
                const int32_t g = header->groups > 0 ? (int32_t)rng_int(&r, 0, header->groups - 1) : -1;
                const int what = (int)rng_int(&r, 0, 6);
                if (what == 0) header->magic = 0;
                if (what == 1) header->status = 5;
                if (what == 2) header->rows_total++;
                if (what == 3) header->rows_end--;
                if (g >= 0 && what == 4) *(int64_t *)(uintptr_t)(view.start + g) = rng_int(&r, -5, 2 * rows);
                if (g >= 0 && what == 5) *(int64_t *)(uintptr_t)(view.rows + g) = rng_chance(&r, 50) ? (int64_t)(rng_next(&r) >> 2) : rng_int(&r, -5, 2 * rows);
                if (g >= 0 && what == 6) *(int64_t *)(uintptr_t)(view.prefix + g) += 1;
            }
        } else {
            v.tensor.shape.groups = (int32_t)rng_int(&r, 0, 6);
            v.tensor.shape.rows = rng_int(&r, 0, 50);
            rows = v.tensor.shape.groups * v.tensor.shape.rows;
            if (rng_chance(&r, 30)) v.tensor.group_stride = v.tensor.shape.rows * v.tensor.shape.cols;
        }
        tegroup_matrix m = filled(&r, rng_chance(&r, 50), dtype, rows, v.tensor.shape.cols, 1);
        if (!ragged && v.tensor.group_stride) v.tensor.group_stride = v.tensor.shape.rows * (m.ld != 0 ? m.ld : m.cols);
        v.tensor.ld = m.ld;
        v.tensor.data = m.data;
        for (int bad = (int)rng_int(&r, 0, 6); bad > 0 && rows > 0 && m.cols > 0; bad--)
            set(&m, rng_int(&r, 0, rows - 1), rng_int(&r, 0, m.cols - 1), rng_chance(&r, 50) ? (double)NAN : rng_chance(&r, 50) ? INFINITY : -INFINITY);
        v.result = (tegroup_validation *)guarded(sizeof *v.result);
        mirror_up(mark);
        tegroup_validate_desc vd = v;
        vd.space = TEGROUP_SPACE_DEVICE;
        vd.result = (tegroup_validation *)device_of(v.result);
        shape_to_device(&vd.tensor.shape);
        vd.tensor.data = device_of(v.tensor.data);
        ASSERT_EQ(TEGROUP_OK, tegroup_validate(&v, NULL, NULL));
        found += v.result->status != 0;
        remember_all(mark);
        RUN_TWICE(mark, tegroup_validate(&vd, NULL, error));
        if (disturbed(mark) != 0) {
            const tegroup_validation *want = (const tegroup_validation *)guarded_memory(v.result);
            fprintf(stderr, "status %x %x bad group %d %d nans %ld %ld tail %ld %ld\n", want->status, v.result->status, want->bad_group, v.result->bad_group,
                    (long)want->owned.nans, (long)v.result->owned.nans, (long)want->tail.nans, (long)v.result->tail.nans);
        }
        ASSERT_EQ(0, disturbed(mark));
        guards_release(mark);
    }
    ASSERT_GT(found, 0);
}

/* A workspace that is too small is refused, and a launch that CUDA refuses is ERROR_CUDA. */
TEST(moe_gpu, refusals) {
    rng r = rng_seed(5011);
    void *mark = guards_mark();
    tegroup_layout layout;
    tegroup_error error;
    tegroup_router_desc d;
    routing c;
    router_make(&d, &r, 1, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32, 9, 8, 2);
    if (!d.balance_loss) d.balance_loss = (double *)guarded(8);
    routing_make(&c, &r, 20, 5, 2);
    mirror_up(mark);
    tegroup_router_desc dd = router_on_device(d);
    tegroup_permutation_desc m = permutation_on_device(c.d, &layout);
    dd.workspace_bytes--;
    ASSERT_EQ(TEGROUP_ERROR_WORKSPACE, tegroup_router(&dd, NULL, &error));
    ASSERT_STREQ("workspace_bytes", error.field);
    dd.workspace_bytes++;
    dd.workspace = dd.probabilities.data = (void *)((uintptr_t)dd.probabilities.data / 256 * 256);
    ASSERT_EQ(TEGROUP_ERROR_OVERLAP, tegroup_router(&dd, NULL, &error));
    m.workspace = NULL;
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_permutation_make(&m, NULL, &error));
    ASSERT_STREQ("workspace", error.field);
    m = permutation_on_device(c.d, &layout);
    m.workspace = (char *)m.workspace + 8;
    ASSERT_EQ(TEGROUP_ERROR_ALIGNMENT, tegroup_permutation_make(&m, NULL, &error));
    m = permutation_on_device(c.d, &layout);
    m.workspace = (void *)(uintptr_t)m.shape.snapshot;
    ASSERT_EQ(TEGROUP_ERROR_OVERLAP, tegroup_permutation_make(&m, NULL, &error));
    ASSERT_STREQ("workspace", error.field);
    m = permutation_on_device(c.d, &layout);
    m.row_of_slot.data = (char *)(uintptr_t)m.shape.snapshot + 256;
    ASSERT_EQ(TEGROUP_ERROR_OVERLAP, tegroup_permutation_make(&m, NULL, &error));
    ASSERT_STREQ("row_of_slot.data", error.field);
    guards_release(mark);
}

TEST_MAIN()
