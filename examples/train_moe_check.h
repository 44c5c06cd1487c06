/* train_moe --check: gradients against central finite differences, in FP64; and what dropout drops.
 *
 * A small model with dropout, a batch of random windows in two micro-batches whose gradients add up, and the loss that
 * training minimises (cross-entropy and load balancing). The unperturbed forward passes choose the experts; the
 * perturbed ones keep their choice, since the loss jumps where a choice changes. Errors are relative to the larger of
 * the two derivatives, or to 1% of the root mean square of the tensor's gradient where both are smaller than that: below
 * it, a difference of two losses has no six digits left. */

enum { CHECKED_ENTRIES = 64, CHECKED_AT_MOST = 512, PARTS = 2, PART_WINDOWS = 16 };

static const double CHECK_TOLERANCE = 1e-6;

typedef struct check {
    model    m;
    pass    *part[PARTS]; /* one a micro-batch, as each has to remember its own choice of experts */
    uint64_t random;
} check;

/* A tensor to perturb, and where its analytic gradient lies. */
typedef struct checked_tensor {
    const char *name;
    double     *value, *grad;
    int64_t     elements;
    int         is_input;
} checked_tensor;

/* The input is what the embedding wrote: while it is perturbed, the embedding must not write it again. */
static double check_loss(check *c, int from_input)
{
    double sum = 0;
    for (int i = 0; i < PARTS; i++) {
        if (!from_input) embed_windows(c->part[i]);
        forward(c->part[i], 0);
        cross_entropy(c->part[i], 0);
        sum += total_loss(c->part[i]) / PART_WINDOWS + balance_loss(c->part[i]);
    }
    return sum / PARTS;
}

/* From here on the layers take the experts of the last pass again. What they choose goes where nobody looks. */
static void keep_experts(pass *p)
{
    for (int i = 0; i < p->m->s.blocks; i++) {
        block *b = &p->block[i];
        b->moe.router.scheme.given_indices = b->indices;
        b->moe.router.indices = make_matrix(&p->owner, b->indices.dtype, b->indices.rows, b->indices.cols);
        plan_moe(p, b);
    }
    make_shared(p);
}

/* What the perturbed losses are compared with. */
static void analytic_gradients(check *c)
{
    const double share = 1.0 / PARTS;
    for (int i = 0; i < PARTS; i++) {
        embed_windows(c->part[i]);
        forward(c->part[i], 0);
        cross_entropy(c->part[i], share / PART_WINDOWS);
        backward(c->part[i], share);
        keep_experts(c->part[i]);
    }
}

/* Central difference with its leading error removed (Richardson): steps of h and 2 h. */
static double finite_difference(check *c, const checked_tensor *t, int64_t entry)
{
    const double h = 2e-3, kept = t->value[entry];
    double change[2];
    for (int i = 0; i < 2; i++) {
        const double step = h * (i + 1);
        t->value[entry] = kept + step;
        change[i] = check_loss(c, t->is_input);
        t->value[entry] = kept - step;
        change[i] -= check_loss(c, t->is_input);
    }
    t->value[entry] = kept;
    return (8 * change[0] - change[1]) / (12 * h);
}

static double root_mean_square(int64_t count, const double *x)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += x[i] * x[i];
    return sqrt(squares / (double)count);
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Compare entries in random order, each at most once. Entries without a gradient (bytes that the batch lacks) are
 * compared too but do not count towards the 64. Returns the worst relative error; `compared` is how many counted. */
static double worst_error(check *c, const checked_tensor *t, int *compared)
{
    const double floor = 0.01 * root_mean_square(t->elements, t->grad);
    int64_t stride = 1 + random_below(&c->random, t->elements), entry = random_below(&c->random, t->elements);
    double worst = 0;
    while (greatest_common_divisor(stride, t->elements) != 1) stride++;
    *compared = 0;
    for (int64_t i = 0; i < t->elements && i < CHECKED_AT_MOST && *compared < CHECKED_ENTRIES; i++) {
        const double analytic = t->grad[entry], numeric = finite_difference(c, t, entry);
        const double size = fmax(fmax(fabs(analytic), fabs(numeric)), floor);
        const double error = analytic == numeric ? 0 : fabs(analytic - numeric) / size;
        if (worst == worst && !(error <= worst)) worst = error; /* a NaN is the worst of all */
        if (analytic != 0) ++*compared;
        entry = (entry + stride) % t->elements;
    }
    return worst;
}

static int check_tensor(check *c, const checked_tensor *t)
{
    int compared;
    const double worst = worst_error(c, t, &compared);
    const int passed = worst <= CHECK_TOLERANCE && compared >= CHECKED_ENTRIES;
    printf("%-16s %3d entries, worst relative error %.1e  %s\n", t->name, compared, worst, passed ? "ok" : "FAILED");
    return passed;
}

static int list_tensors(check *c, checked_tensor *list)
{
    const pass *p = c->part[PARTS - 1];
    const int64_t elements = p->embedded.rows * p->embedded.cols;
    list[0] = (checked_tensor){ "input", p->embedded.data, p->grad.embedded.data, elements, 1 };
    for (int i = 0; i < c->m.count; i++) {
        parameter *q = c->m.all[i];
        list[i + 1] = (checked_tensor){ q->name, q->value, q->grad, q->elements, 0 };
    }
    return c->m.count + 1;
}

/* A planted fault: the named tensor's gradient with the wrong sign. Returns 0 if there is no such tensor. */
static int flip_sign(checked_tensor *list, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(list[i].name, name) != 0) continue;
        for (int64_t j = 0; j < list[i].elements; j++) list[i].grad[j] = -list[i].grad[j];
        return 1;
    }
    return 0;
}

/* How many of the first `count` values two dropouts drop both; of one dropout, how many it drops. */
static int64_t dropped_by_both(dropout one, dropout other, int64_t count)
{
    int64_t dropped = 0;
    for (int64_t i = 0; i < count; i++) dropped += kept(one, i) == 0 && kept(other, i) == 0;
    return dropped;
}

/* Whether a share is what chance gives, to five standard deviations. */
static int by_chance(int64_t drawn, int64_t count, double rate)
{
    return fabs((double)drawn - rate * (double)count) <= 5 * sqrt((double)count * rate * (1 - rate));
}

/* A dropout takes its share, what is kept makes up for it; each place, micro-batch and step drops other values. */
static int check_dropout(const check *c)
{
    const int64_t count = 100000;
    const step_clock later = { .step = c->m.clock->step + 1 };
    const dropout d = dropout_of(c->part[0], 0);
    const dropout others[] = {
        dropout_of(c->part[0], 1), dropout_of(c->part[1], 0), { d.rate, d.random, d.number, d.all, &later }
    };
    const int64_t dropped = dropped_by_both(d, d, count);
    int passed = by_chance(dropped, count, d.rate);
    for (int i = 0; i < 3; i++) passed &= by_chance(dropped_by_both(d, others[i], count), count, d.rate * d.rate);
    for (int64_t i = 0; i < count; i++) passed &= kept(d, i) == 0 || fabs(kept(d, i) * (1 - d.rate) - 1) < 1e-15;
    printf("dropout          %lld of %lld values at a rate of %.2f  %s\n", (long long)dropped, (long long)count, d.rate,
        passed ? "ok" : "FAILED");
    return passed;
}

static void random_windows(pass *p, uint64_t *random)
{
    for (int64_t i = 0; i < p->tokens * p->m->s.context; i++) p->bytes[i] = (uint8_t)random_bits(random);
    for (int64_t t = 0; t < p->tokens; t++) p->targets[t] = (uint8_t)random_bits(random);
}

static void check_make(check *c, uint64_t seed, int threads)
{
    const settings small = {
        .space = TEGROUP_SPACE_HOST,
        .dtype = TEGROUP_DTYPE_F64, .operand = TEGROUP_DTYPE_F64, .compute = TEGROUP_COMPUTE_F64,
        .context = 6, .embed = 8, .width = 64, .hidden = 24,
        .blocks = 2, .experts = 8, .choices = 2, .threads = threads, .balance = 0.5, .dropout = 0.2
    };
    c->random = seed;
    model_make(&c->m, &small, random_bits(&c->random));
    for (int i = 0; i < PARTS; i++) {
        c->part[i] = pass_make(&c->m, PART_WINDOWS);
        c->part[i]->part = i;
        c->part[i]->parts = PARTS;
        random_windows(c->part[i], &c->random);
    }
}

static void check_release(check *c)
{
    for (int i = 0; i < PARTS; i++) pass_release(c->part[i]);
    release(&c->m.owner);
}

/* The exit status: 0 when every tensor passes, 1 when one does not, 2 when there is no tensor of the name to flip. */
static int check_gradients(uint64_t seed, int threads, const char *flipped)
{
    check c;
    checked_tensor list[MAX_PARAMETERS + 1];
    int failed = 0;
    check_make(&c, seed, threads);
    analytic_gradients(&c);
    const int count = list_tensors(&c, list);
    if (flipped && !flip_sign(list, count, flipped)) {
        fprintf(stderr, "train_moe: no tensor is named '%s'\n", flipped);
        failed = 2;
    } else {
        for (int i = 0; i < count; i++) failed |= !check_tensor(&c, &list[i]);
        failed |= !check_dropout(&c);
        printf("gradient check %s, FP64, tolerance %.0e\n", failed ? "FAILED" : "passed", CHECK_TOLERANCE);
    }
    check_release(&c);
    return failed;
}
