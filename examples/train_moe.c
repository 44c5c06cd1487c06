/* cc -O3 -march=native -fopenmp -I. examples/train_moe.c -o train_moe -lm */

/* Train a small mixture-of-experts language model on a text, byte by byte; on the CPU, or with train_moe.cu a larger one
 * on a GPU.
 *
 *     ./train_moe [options] [text]     (--help lists the options)
 *
 * The last tenth of the text is never trained on. At the end the model has to predict it at least 10% better than a
 * byte bigram, and better than itself without its MoE blocks; otherwise the exit status is 1. Losses are in nats a byte.
 *
 *     train_moe_model.h    the model: every stage, forward and backward, through tegroup
 *     train_moe_math.h     the arithmetic around it that is not tegroup's
 *     train_moe_shared.h   formulas that CPU and GPU share
 *     train_moe_gpu.h      what train_moe.cu adds: the same stages as kernels, and a training step as a CUDA graph
 *     train_moe_formats.h  --format: experts in FP8 and narrower
 *     train_moe_check.h    --check: its gradients against finite differences
 *     train_moe_text.h     the text and the bigram
 *     train_moe_weights.h  the safetensors file
 */
#define _POSIX_C_SOURCE 200809L
#if defined(TRAIN_MOE_GPU)
#define TEGROUP_EXTERN /* train_moe.cu holds the implementation */
#else
#define TEGROUP_IMPLEMENTATION
#endif
#include "tegroup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>
#include <time.h>
#include <unistd.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "train_moe_model.h"
#include "train_moe_check.h"
#include "train_moe_text.h"
#include "train_moe_weights.h"

enum {
    REPORTS = 10,         /* looks at the held-out text during training      */
    GLIMPSE = 4096,       /* held-out windows in a CPU's look; a GPU has time for all  */
    MAX_CONTEXT = 64,
    SAMPLE_BYTES = 500,
    BAR_WIDTH = 10,
    LOAD_WIDTH = 40,
    LINE_WIDTH = 80,
    AGREEING_STEPS = 50   /* whose losses --agree compares one by one        */
};

static const double TEMPERATURE = 0.6; /* of the sample: below 1 prefers likely bytes */

typedef struct configuration {
    int64_t  windows, micro_batches; /* windows in a micro-batch; gradients of several are added up for one step */
    int64_t  steps;
    double   rate;                   /* the highest */
    settings s;
} configuration;

static const configuration small_model = {
    .windows = 1024, .micro_batches = 2, .steps = 600, .rate = 6e-3,
    .s = { .space = TEGROUP_SPACE_HOST, .dtype = TEGROUP_DTYPE_F32, .operand = TEGROUP_DTYPE_F32,
        .compute = TEGROUP_COMPUTE_F32, .context = 16, .embed = 32, .width = 128, .hidden = 128, .blocks = 2, .experts = 8,
        .choices = 2, .balance = 0.02 }
};

#if defined(TRAIN_MOE_GPU)
/* Seven times the small model's weights, and twenty times through the text: dropout is what keeps it from learning that
 * by heart. Chosen on the first nine tenths of the text, of which the last was held out then. */
static const configuration large_model = {
    .windows = 2048, .micro_batches = 2, .steps = 2000, .rate = 2e-3,
    .s = { .space = TEGROUP_SPACE_DEVICE, .dtype = TEGROUP_DTYPE_F32, .operand = TEGROUP_DTYPE_BF16,
        .compute = TEGROUP_COMPUTE_F32, .context = 16, .embed = 64, .width = 256, .hidden = 128, .blocks = 4,
        .experts = 16, .choices = 2, .balance = 0.02, .dropout = 0.2 }
};
#endif

/* ---- Options ---- */

typedef struct options {
    const char *text_path, *weights_path, *flipped, *format, *losses_path;
    int64_t     steps, seed, threads;
    int         check, help, quiet, bf16, cpu, small, agree;
} options;

static void print_usage(void)
{
    printf("usage: train_moe [options] [text]\n"
           "  text          file to train on (examples/data/persuasion.txt)\n"
           "  --steps N     training steps (%lld)\n"
           "  --seed N      of the weights, the windows and the sample (1)\n"
           "  --threads N   CPU threads (all)\n"
           "  --out FILE    where the weights go, as safetensors (train_moe.safetensors)\n"
           "  --quiet       no progress, no expert loads, no sample\n"
           "  --bf16        products of BF16, sums and weights in FP32\n"
           "  --format NAME " FORMAT_NAMES ": of the experts;\n"
           "                other products are of BF16 but with f32\n"
           "  --losses FILE where the loss of each step goes, as text\n"
           "  --check       compare gradients with finite differences instead of training\n",
        (long long)small_model.steps);
#if defined(TRAIN_MOE_GPU)
    printf("with a GPU, whose products are always of BF16:\n"
           "  --cpu         train the small model on the CPU instead (without --steps, %lld steps on the GPU)\n"
           "  --small       train the small model on the GPU\n"
           "  --agree       train the small model on both, and compare their losses\n",
        (long long)large_model.steps);
#endif
}

static int bad_option(const char *problem, const char *what)
{
    fprintf(stderr, "train_moe: %s '%s' (--help lists the options)\n", problem, what);
    return 2;
}

static int parse_number(const char *digits, int64_t least, int64_t most, int64_t *number)
{
    char *end;
    errno = 0;
    const long long value = strtoll(digits, &end, 10);
    *number = value;
    return end != digits && *end == 0 && errno == 0 && value >= least && value <= most;
}

/* Options that take a value. Returns -1 when `name` is none of them, else an exit status, 0 = fine. */
static int parse_valued(options *o, const char *name, const char *value)
{
    const struct { const char *name; int64_t least, most; int64_t *number; } numbers[] = {
        { "--steps", 1, 1000000000, &o->steps },
        { "--seed", 0, INT64_MAX, &o->seed },
        { "--threads", 1, 4096, &o->threads },
    };
    const struct { const char *name, **text; } texts[] = {
        { "--out", &o->weights_path },
        { "--format", &o->format },
        { "--losses", &o->losses_path },
        { "--plant-sign-flip", &o->flipped }, /* for the test of --check: the tensor whose gradient is negated */
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        if (!value) return bad_option("no value for", name);
        if (parse_number(value, numbers[i].least, numbers[i].most, numbers[i].number)) return 0;
        fprintf(stderr, "train_moe: %s takes a number from %lld to %lld, not '%s'\n", name, (long long)numbers[i].least,
            (long long)numbers[i].most, value);
        return 2;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(name, texts[i].name) != 0) continue;
        *texts[i].text = value;
        return value && *value ? 0 : bad_option("no value for", name);
    }
    return -1;
}

/* Returns an exit status for wrong arguments, 0 = fine. */
static int parse_options(options *o, int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        const int status = parse_valued(o, name, i + 1 < count ? arguments[i + 1] : NULL);
        if (status > 0) return status;
        if (status == 0) i++;
        else if (strcmp(name, "--check") == 0) o->check = 1;
        else if (strcmp(name, "--help") == 0) o->help = 1;
        else if (strcmp(name, "--quiet") == 0) o->quiet = 1;
        else if (strcmp(name, "--bf16") == 0) o->bf16 = 1;
#if defined(TRAIN_MOE_GPU)
        else if (strcmp(name, "--cpu") == 0) o->cpu = 1;
        else if (strcmp(name, "--small") == 0) o->small = 1;
        else if (strcmp(name, "--agree") == 0) o->agree = 1;
#endif
        else if (name[0] == '-') return bad_option("unknown option", name);
        else if (o->text_path) return bad_option("a second text", name);
        else o->text_path = name;
    }
    return 0;
}

/* ---- Training ---- */

typedef struct training {
    const options *o;
    configuration  c;
    text           t;
    model          m;
    pass          *p;
    uint64_t       random;
    int64_t        step;
    double        *losses;     /* of each step                                      */
    int64_t        averaged;   /* of which so many are in train_loss                */
    double         train_loss; /* mean of the last 20 steps or so                   */
    double         seconds;    /* spent on training alone                           */
    double         flop;       /* of one step's products                            */
    double         held_out;   /* the last glimpse, in the end of all               */
    int64_t        load[MAX_BLOCKS][TEGROUP_MAX_GROUPS]; /* slots that each expert got in the last evaluation */
    memory         on_gpu;     /* a GPU's copy of the text and the losses, and its step */
    uint8_t       *gpu_text;
    double        *gpu_losses;
    void          *graph;
} training;

static void draw_windows(training *run, int64_t micro_batch)
{
    pass *p = run->p;
    const configuration *c = &run->c;
    const gpu_windows windows = {
        .text = run->gpu_text, .train_end = run->t.train_end, .context = c->s.context, .tokens = p->tokens,
        .micro_batch = micro_batch, .micro_batches = c->micro_batches, .random = run->random,
        .bytes = p->bytes, .targets = p->targets
    };
    if (ON_GPU(&c->s)) draw_windows_gpu(c->s.stream, &windows, run->m.clock);
    else {
        const int64_t first = (run->m.clock->step * c->micro_batches + micro_batch) * p->tokens;
        for (int64_t t = 0; t < p->tokens; t++)
            set_window(p, t, run->t.bytes, window_position(run->random, first + t, c->s.context, run->t.train_end));
    }
}

/* One step; on a GPU it is only recorded: what changes from step to step is on the clock. */
static void step_once(training *run)
{
    pass *p = run->p;
    const configuration *c = &run->c;
    const double share = 1.0 / (double)c->micro_batches;
    p->parts = c->micro_batches;
    for (int64_t i = 0; i < c->micro_batches; i++) {
        p->part = i;
        draw_windows(run, i);
        embed_windows(p);
        forward(p, 0);
        cross_entropy(p, share / (double)p->tokens);
        if (ON_GPU(&c->s))
            add_loss_gpu(c->s.stream, p->tokens, share, p->row_loss, run->gpu_losses, run->m.clock);
        else run->losses[run->m.clock->step] += share * total_loss(p) / (double)p->tokens;
        backward(p, share);
    }
    p->parts = 0;
    if (ON_GPU(&c->s)) next_step_gpu(c->s.stream, c->rate, c->steps, run->m.clock);
    else next_step(c->rate, c->steps, run->m.clock);
    update(&run->m);
}

/* The step as a graph: routing, batches and rates of later steps are made on the GPU, so that a replay needs nothing. */
static void record_step(training *run)
{
    const settings *s = &run->c.s;
    const double before = run->p->gemm_flop;
    if (!ON_GPU(s)) return;
    run->on_gpu.space = s->space;
    run->gpu_text = allocate(&run->on_gpu, (size_t)run->t.size);
    run->gpu_losses = allocate(&run->on_gpu, (size_t)run->c.steps * sizeof *run->gpu_losses);
    copy(s, run->gpu_text, run->t.bytes, (size_t)run->t.size);
    for (int b = 0; b < s->blocks; b++) run->p->block[b].quantised = -1; /* each replay quantises weights anew */
    capture_gpu(s->stream);
    step_once(run);
    run->graph = captured_gpu(s->stream);
    run->flop = run->p->gemm_flop - before;
}

static void train_step(training *run)
{
    const double start = seconds();
    if (ON_GPU(&run->c.s)) {
        replay_gpu(run->graph, run->c.s.stream);
        run->m.updates++;
    } else step_once(run);
    run->step++;
    run->seconds += seconds() - start;
}

/* The mean over the steps since it was last asked for; waits for a GPU. */
static void average_losses(training *run)
{
    const settings *s = &run->c.s;
    const double start = seconds();
    if (ON_GPU(s)) {
        wait_gpu(s->stream);
        copy(s, run->losses, run->gpu_losses, (size_t)run->step * sizeof *run->losses);
    }
    for (; run->averaged < run->step; run->averaged++)
        run->train_loss += fmax(0.05, 1.0 / (double)(run->averaged + 1)) * (run->losses[run->averaged] - run->train_loss);
    run->seconds += seconds() - start;
}

/* ---- Evaluation ---- */

static void add_load(training *run)
{
    for (int b = 0; b < run->m.s.blocks; b++) {
        int64_t counts[TEGROUP_MAX_GROUPS];
        copy(&run->c.s, counts, run->p->block[b].counts.data, (size_t)run->m.s.experts * sizeof *counts);
        for (int e = 0; e < run->m.s.experts; e++) run->load[b][e] += counts[e];
    }
}

/* Mean loss of at most `windows` held-out bytes, evenly spread over all of them. */
static double held_out_loss(training *run, int64_t windows, int bypass_blocks)
{
    pass *p = run->p;
    const text *t = &run->t;
    const int64_t held_out = t->size - t->train_end;
    double loss = 0;
    if (windows > held_out) windows = held_out;
    memset(run->load, 0, sizeof run->load);
    for (int64_t first = 0; first < windows; first += p->tokens) {
        for (int64_t i = 0; i < p->tokens; i++) {
            const int64_t window = first + i < windows ? first + i : windows - 1;
            set_window(p, i, t->bytes, t->train_end + window * held_out / windows);
            if (first + i >= windows) p->targets_here[i] = -1; /* fills up the last batch, scores nothing */
        }
        load_windows(p);
        embed_windows(p);
        forward(p, bypass_blocks);
        cross_entropy(p, 0);
        loss += total_loss(p);
        if (!bypass_blocks) add_load(run);
    }
    return loss / (double)windows;
}

/* ---- Reports ---- */

static void print_bar(double share, int width)
{
    const int filled = (int)(share * width + 0.5);
    for (int i = 0; i < width; i++) putchar(i < filled ? '#' : '.');
}

static void print_progress(const training *run, const char *end)
{
    const configuration *c = &run->c;
    const double done = (double)run->step / (double)c->steps;
    const double tokens = (double)(run->step * c->micro_batches * c->windows);
    const double rate = ON_GPU(&c->s) ? (double)run->step * run->flop / run->seconds : run->p->gemm_flop / run->p->gemm_seconds;
    putchar('[');
    print_bar(done, BAR_WIDTH);
    printf("] %3.0f%% train %.3f held-out %.3f %6.0f tokens/s %4.0f GFLOP/s%s", 100 * done, run->train_loss,
        run->held_out, tokens / run->seconds, 1e-9 * rate, end);
    fflush(stdout);
}

/* A terminal shows one line that moves; a log gets one line a glimpse. So does a terminal with a GPU, which would have to
 * wait for every line. */
static void train(training *run)
{
    const int64_t steps = run->c.steps;
    const int terminal = isatty(STDOUT_FILENO) && !ON_GPU(&run->c.s);
    const int64_t glimpse = ON_GPU(&run->c.s) ? INT64_MAX : GLIMPSE;
    record_step(run);
    if (!run->o->quiet) run->held_out = held_out_loss(run, glimpse, 0);
    for (int64_t report = 0; run->step < steps;) {
        train_step(run);
        const int due = run->step * REPORTS / steps > report;
        if (due || terminal) average_losses(run);
        if (due) report = run->step * REPORTS / steps;
        if (run->o->quiet) continue;
        if (due) run->held_out = held_out_loss(run, glimpse, 0);
        if (terminal || due) print_progress(run, terminal ? "\r" : "\n");
    }
    if (terminal && !run->o->quiet) putchar('\n');
    run->random += RANDOM_STRIDE * (uint64_t)(steps * run->c.micro_batches * run->c.windows); /* the windows' numbers are used up */
}

static void print_loads(const training *run)
{
    for (int b = 0; b < run->m.s.blocks; b++) {
        int64_t all = 0, most = 1;
        for (int e = 0; e < run->m.s.experts; e++) {
            all += run->load[b][e];
            if (run->load[b][e] > most) most = run->load[b][e];
        }
        printf("\nblock %d: tokens to each expert\n", b);
        for (int e = 0; e < run->m.s.experts; e++) {
            printf("  expert %d  ", e);
            print_bar((double)run->load[b][e] / (double)most, LOAD_WIDTH);
            printf("  %4.1f%%\n", 100 * (double)run->load[b][e] / (double)all);
        }
    }
}

/* A byte drawn from the first row's logits. */
static uint8_t draw_byte(pass *p, uint64_t *random)
{
    float logits[BYTE_VALUES];
    copy(&p->m->s, logits, p->logits.data, sizeof logits);
    double largest = logits[0], odds[BYTE_VALUES], sum = 0;
    for (int c = 1; c < BYTE_VALUES; c++) largest = fmax(largest, (double)logits[c]);
    for (int c = 0; c < BYTE_VALUES; c++) sum += odds[c] = exp((logits[c] - largest) / TEMPERATURE);
    double left = random_unit(random) * sum;
    int byte = 0;
    while (byte < BYTE_VALUES - 1 && (left -= odds[byte]) > 0) byte++;
    return (uint8_t)byte;
}

/* Print text in lines of LINE_WIDTH, with a dot for control characters. */
static void print_wrapped(const uint8_t *bytes, int64_t count)
{
    int column = 0;
    for (int64_t i = 0; i < count; i++) {
        const int wrap = bytes[i] == ' ' && column > LINE_WIDTH - 10;
        const int byte = wrap ? '\n' : bytes[i] < ' ' && bytes[i] != '\n' ? '.' : bytes[i];
        putchar(byte);
        column = byte == '\n' ? 0 : column + 1;
    }
    putchar('\n');
}

/* Continue the last bytes that were trained on, with a pass of its own that is planned for one window. */
static void print_sample(training *run)
{
    const int64_t context = run->c.s.context;
    uint8_t sample[MAX_CONTEXT + SAMPLE_BYTES] = { 0 };
    pass *p = pass_make(&run->m, 1);
    memcpy(sample, run->t.bytes + run->t.train_end - context, (size_t)context);
    for (int64_t i = context; i < context + SAMPLE_BYTES; i++) {
        set_window(p, 0, sample, i);
        load_windows(p);
        embed_windows(p);
        forward(p, 0);
        sample[i] = draw_byte(p, &run->random);
    }
    pass_release(p);
    printf("\nsample, its first %lld bytes from the text\n\n", (long long)context);
    print_wrapped(sample, context + SAMPLE_BYTES);
}

static void print_heading(const training *run)
{
    const settings *s = &run->m.s;
    printf("%s: %lld bytes, the last %lld held out\n", run->o->text_path, (long long)run->t.size,
        (long long)(run->t.size - run->t.train_end));
    printf("%lld weights: %d blocks, top %d of %d experts; %lld steps of %lld x %lld windows of %lld bytes\n",
        (long long)model_elements(&run->m), s->blocks, s->choices, s->experts, (long long)run->c.steps,
        (long long)run->c.micro_batches, (long long)run->c.windows, (long long)s->context);
}

/* The verdict on the trained model; returns the exit status. */
static int judge(training *run, double start)
{
    const double bigram = bigram_loss(&run->t);
    const double bypassed = held_out_loss(run, INT64_MAX, 1);
    const double held_out = run->held_out = held_out_loss(run, INT64_MAX, 0);
    if (!run->o->quiet) {
        print_loads(run);
        print_sample(run);
    }
    printf("\nheld-out with the MoE blocks bypassed %.3f (nats a byte)\n", bypassed);
    printf("held-out %.3f %s bigram %.3f, %.1f s\n", held_out, held_out < bigram ? "<" : ">=", bigram, seconds() - start);
    if (held_out <= 0.9 * bigram && held_out < bypassed) return 0;
    fprintf(stderr, "train_moe: not learnt: held-out must be at most %.3f and below the bypassed model's\n", 0.9 * bigram);
    return 1;
}

/* ---- Main ---- */

static int save(const model *m, const char *path, FILE *file)
{
    const int complete = write_safetensors(m, file);
    if (complete) printf("\nweights written to %s\n", path);
    else fprintf(stderr, "train_moe: cannot write all of '%s'\n", path);
    return complete;
}

/* The loss of each step in training, a line each. */
static int save_losses(const training *run, const char *path)
{
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!path) return 1;
    for (int64_t i = 0; file && i < run->step; i++) fprintf(file, "%lld,%.5f\n", (long long)i + 1, run->losses[i]);
    if (file && !ferror(file) && fclose(file) == 0) return 1;
    fprintf(stderr, "train_moe: cannot write '%s': %s\n", path, strerror(errno));
    return 0;
}

static void run_make(training *run, const options *o, const configuration *c)
{
    run->o = o;
    run->c = *c;
    run->random = (uint64_t)o->seed;
    run->losses = calloc((size_t)c->steps, sizeof *run->losses);
    if (!run->losses) {
        fprintf(stderr, "train_moe: out of memory\n");
        exit(1);
    }
    model_make(&run->m, &run->c.s, random_bits(&run->random));
    run->p = pass_make(&run->m, c->windows);
}

static void run_release(training *run)
{
    if (ON_GPU(&run->c.s)) release_graph_gpu(run->graph);
    pass_release(run->p);
    release(&run->m.owner);
    release(&run->on_gpu);
    free(run->losses);
}

static int run_training(const options *o, const configuration *c)
{
    const double start = seconds();
    static training run;
    if (!text_load(&run.t, o->text_path)) return 2;
    FILE *weights = fopen(o->weights_path, "wb"); /* before the work, not after it */
    if (!weights) {
        fprintf(stderr, "train_moe: cannot write '%s': %s\n", o->weights_path, strerror(errno));
        free(run.t.bytes);
        return 2;
    }
    run_make(&run, o, c);
    print_heading(&run);
    train(&run);
    const int saved = save(&run.m, o->weights_path, weights), told = save_losses(&run, o->losses_path);
    const int status = judge(&run, start);
    run_release(&run);
    free(run.t.bytes);
    return saved && told ? status : 1;
}

#if defined(TRAIN_MOE_GPU)
/* The gradients of a micro-batch, dropout in them, left where update takes them. */
static void leave_gradients(training *run)
{
    pass *p = run->p;
    for (int64_t t = 0; t < p->tokens; t++)
        set_window(p, t, run->t.bytes, run->c.s.context + t % (SHORTEST_TEXT / 2));
    load_windows(p);
    p->parts = run->c.micro_batches;
    embed_windows(p);
    forward(p, 0);
    cross_entropy(p, 1.0 / (double)p->tokens);
    backward(p, 1);
    p->parts = 0;
}

/* How far a parameter's gradients on two machines are apart, as a part of their size; they are cleared. */
static double gradient_difference(training run[2], int number)
{
    const int64_t elements = run[0].m.all[number]->elements;
    memory here = { .space = TEGROUP_SPACE_HOST };
    float *grad[2];
    double squares = 0, apart = 0;
    for (int i = 0; i < 2; i++) {
        const settings *s = &run[i].c.s;
        void *from = run[i].m.all[number]->grad;
        grad[i] = allocate(&here, (size_t)elements * sizeof **grad);
        copy(s, grad[i], from, (size_t)elements * sizeof **grad);
        STAGE(s, clear, elements, from);
    }
    for (int64_t j = 0; j < elements; j++) {
        const double difference = (double)grad[1][j] - grad[0][j];
        squares += (double)grad[0][j] * grad[0][j];
        apart += difference * difference;
    }
    release(&here);
    return sqrt(apart / squares);
}

/* The largest of all parameters'. */
static double gradients_differ(training run[2])
{
    double worst = 0;
    for (int i = 0; i < 2; i++) leave_gradients(&run[i]);
    for (int k = 0; k < run[0].m.count; k++) {
        const double difference = gradient_difference(run, k);
        if (worst == worst && !(difference <= worst)) worst = difference; /* a NaN is the worst of all */
    }
    return worst;
}

/* --agree: one model, one seed, one text on both machines, the large model's dropout, each making its own routing by
 * the same rule. Gradients that dropped other values would be as far apart as they are large. In training sums differ
 * in order, and a token between two experts may go either way; the losses must not show it. The rate is a sixth of the
 * demo's: at that one training is chaotic from step 22 on, and two CPU builds, one with -ffast-math, differ by 5% at
 * step 30 (at this, 0.14%). */
static int compare_machines(const options *o, const configuration *gpu)
{
    const double gradient_tolerance = 0.02, loss_tolerance = 0.01, held_out_tolerance = 0.02, rate = 1e-3;
    configuration c[2] = { *gpu, *gpu };
    static training run[2];
    options quiet = *o;
    double worst = 0;
    int64_t worst_step = 0;
    c[0].s.space = TEGROUP_SPACE_HOST;
    c[0].s.stream = NULL;
    quiet.quiet = 1;
    for (int i = 0; i < 2; i++) {
        c[i].rate = rate;
        c[i].s.dropout = large_model.s.dropout;
        if (!text_load(&run[i].t, o->text_path)) return 2;
        run_make(&run[i], &quiet, &c[i]);
    }
    const double gradients = gradients_differ(run);
    for (int i = 0; i < 2; i++) {
        train(&run[i]);
        run[i].held_out = held_out_loss(&run[i], INT64_MAX, 0);
        printf("%s: held-out %.4f after %lld steps\n", i ? "GPU" : "CPU", run[i].held_out, (long long)c[i].steps);
    }
    for (int64_t step = 0; step < c[0].steps; step++) {
        const double difference = fabs(run[1].losses[step] / run[0].losses[step] - 1);
        if (step < AGREEING_STEPS || (step + 1) % 100 == 0)
            printf("step %lld: CPU %.5f GPU %.5f, difference %.3f%%\n", (long long)step + 1, run[0].losses[step],
                run[1].losses[step], 100 * difference);
        if (step < AGREEING_STEPS && worst == worst && !(difference <= worst)) worst = difference, worst_step = step;
    }
    const double held_out = fabs(run[1].held_out / run[0].held_out - 1);
    const int agree = gradients <= gradient_tolerance && worst <= loss_tolerance && held_out <= held_out_tolerance;
    printf("gradients differ by at most %.3f%%, the first %d losses by %.3f%% (step %lld), held-out by %.3f%%: %s\n",
        100 * gradients, AGREEING_STEPS, 100 * worst, (long long)worst_step + 1, 100 * held_out,
        agree ? "ok" : "FAILED");
    for (int i = 0; i < 2; i++) {
        run_release(&run[i]);
        free(run[i].t.bytes);
    }
    return !agree;
}
#endif

int main(int count, char **arguments)
{
    options o = { .weights_path = "train_moe.safetensors", .seed = 1 };
    configuration c = small_model;
    const int status = parse_options(&o, count, arguments);
    if (status) return status;
    if (o.help) {
        print_usage();
        return 0;
    }
    if (!o.text_path) o.text_path = "examples/data/persuasion.txt";
#if defined(_OPENMP)
    if (o.threads) omp_set_num_threads((int)o.threads);
#endif
    if (o.check) return check_gradients((uint64_t)o.seed, (int)o.threads, o.flipped);
    if (o.format) {
        c.s.format = format_of(o.format);
        if (!c.s.format && strcmp(o.format, "f32") != 0 && strcmp(o.format, "bf16") != 0)
            return bad_option("a format is " FORMAT_NAMES ", not", o.format);
#if defined(TRAIN_MOE_GPU)
#if !defined(TRAIN_MOE_FORMATS)
        if (!o.cpu) return bad_option("--cpu is needed in a build without TRAIN_MOE_FORMATS, with --format", o.format);
#endif
        if (!o.cpu && strcmp(o.format, "f32") == 0) return bad_option("--cpu is needed with --format", o.format);
#endif
        if (strcmp(o.format, "f32") != 0) c.s.operand = TEGROUP_DTYPE_BF16;
    }
    if (o.bf16) c.s.operand = TEGROUP_DTYPE_BF16;
#if defined(TRAIN_MOE_GPU)
    if (!o.cpu) {
        char gpu[256];
        const struct format *format = c.s.format;
        if (!o.small && !o.agree) c = large_model;
        c.s.format = format;
        c.s.space = TEGROUP_SPACE_DEVICE;
        c.s.operand = TEGROUP_DTYPE_BF16;
        c.s.stream = stream_gpu(gpu, sizeof gpu);
        if (!c.s.stream) {
            fprintf(stderr, "train_moe: no GPU (--cpu trains on the CPU)\n");
            return 2;
        }
        printf("on %s\n", gpu);
    }
#endif
    if (o.steps) c.steps = o.steps;
    c.s.threads = (int32_t)o.threads;
#if defined(TRAIN_MOE_GPU)
    if (o.agree) return compare_machines(&o, &c);
#endif
    return run_training(&o, &c);
}
