/* cc -O3 -march=native -fopenmp -I. examples/train_moe.c -o train_moe -lm */

/* Train a small mixture-of-experts language model on a text, byte by byte, on the CPU.
 *
 *     ./train_moe [options] [text]     (--help lists the options)
 *
 * The last tenth of the text is never trained on. At the end the model has to predict it at least 10% better than a
 * byte bigram, and better than itself without its MoE blocks; otherwise the exit status is 1. Losses are in nats a byte.
 *
 *     train_moe_model.h    the model: every stage, forward and backward, through tegroup
 *     train_moe_math.h     the arithmetic around it that is not tegroup's
 *     train_moe_check.h    --check: its gradients against finite differences
 *     train_moe_text.h     the text and the bigram
 *     train_moe_weights.h  the safetensors file
 */
#define _POSIX_C_SOURCE 200809L
#define TEGROUP_IMPLEMENTATION
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
    DEFAULT_STEPS = 600,
    CONTEXT = 16,         /* bytes in a window                               */
    WINDOWS = 1024,       /* in one micro-batch                              */
    MICRO_BATCHES = 2,    /* whose gradients are added up for one step       */
    REPORTS = 10,         /* looks at the held-out text during training      */
    GLIMPSE = 4096,       /* held-out windows that such a look is taken from */
    SAMPLE_BYTES = 500,
    BAR_WIDTH = 10,
    LOAD_WIDTH = 40,
    LINE_WIDTH = 80
};

static const double LEARNING_RATE = 6e-3;
static const double TEMPERATURE = 0.6; /* of the sample: below 1 prefers likely bytes */

/* ---- Options ---- */

typedef struct options {
    const char *text_path, *weights_path, *flipped;
    int64_t     steps, seed, threads;
    int         check, help, quiet;
} options;

static void print_usage(void)
{
    printf("usage: train_moe [options] [text]\n"
           "  text          file to train on (examples/data/persuasion.txt)\n"
           "  --steps N     training steps (%d)\n"
           "  --seed N      of the weights, the windows and the sample (1)\n"
           "  --threads N   CPU threads (all)\n"
           "  --out FILE    where the weights go, as safetensors (train_moe.safetensors)\n"
           "  --quiet       no progress, no expert loads, no sample\n"
           "  --check       compare gradients with finite differences instead of training\n",
        DEFAULT_STEPS);
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
        else if (name[0] == '-') return bad_option("unknown option", name);
        else if (o->text_path) return bad_option("a second text", name);
        else o->text_path = name;
    }
    return 0;
}

/* ---- Training ---- */

typedef struct training {
    const options *o;
    text           t;
    model          m;
    pass          *p;
    uint64_t       random;
    int64_t        step;
    double         seconds;    /* spent on training alone                           */
    double         train_loss; /* mean of the last 20 steps or so                   */
    double         held_out;   /* the last glimpse                                  */
    int64_t        load[MAX_BLOCKS][TEGROUP_MAX_GROUPS]; /* slots that each expert got in the last evaluation */
} training;

static void draw_windows(training *run)
{
    for (int64_t t = 0; t < run->p->tokens; t++)
        set_window(run->p, t, run->t.bytes, CONTEXT + random_below(&run->random, run->t.train_end - CONTEXT));
}

/* A short rise, so that Adam's moments settle first, then half a cosine down to zero. */
static double learning_rate(int64_t step, int64_t steps)
{
    const double done = (double)step / (double)steps, rise = 0.05;
    const double risen = fmin(1.0, (double)(step + 1) / (rise * (double)steps));
    return LEARNING_RATE * risen * 0.5 * (1 + cos(3.14159265358979 * done));
}

static void train_step(training *run)
{
    pass *p = run->p;
    const double start = seconds(), share = 1.0 / MICRO_BATCHES;
    double loss = 0;
    for (int i = 0; i < MICRO_BATCHES; i++) {
        draw_windows(run);
        embed_windows(p);
        forward(p, 0);
        loss += share * cross_entropy(p, share / (double)p->tokens) / (double)p->tokens;
        backward(p, share);
    }
    update(&run->m, learning_rate(run->step, run->o->steps));
    run->step++;
    run->train_loss += fmax(0.05, 1.0 / (double)run->step) * (loss - run->train_loss);
    run->seconds += seconds() - start;
}

/* ---- Evaluation ---- */

static void add_load(training *run)
{
    for (int b = 0; b < run->m.s.blocks; b++) {
        const int64_t *counts = run->p->block[b].counts.data;
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
            if (first + i >= windows) p->targets[i] = -1; /* fills up the last batch, scores nothing */
        }
        embed_windows(p);
        forward(p, bypass_blocks);
        loss += cross_entropy(p, 0);
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
    const double done = (double)run->step / (double)run->o->steps;
    const double tokens = (double)run->step * MICRO_BATCHES * WINDOWS;
    putchar('[');
    print_bar(done, BAR_WIDTH);
    printf("] %3.0f%% train %.3f held-out %.3f %6.0f tokens/s %4.0f GEMM GFLOP/s%s", 100 * done, run->train_loss,
        run->held_out, tokens / run->seconds, 1e-9 * run->p->gemm_flop / run->p->gemm_seconds, end);
    fflush(stdout);
}

/* A terminal shows one line that moves; a log gets one line a glimpse. */
static void train(training *run)
{
    const int64_t steps = run->o->steps;
    const int terminal = isatty(STDOUT_FILENO);
    if (!run->o->quiet) run->held_out = held_out_loss(run, GLIMPSE, 0);
    for (int64_t report = 0; run->step < steps;) {
        train_step(run);
        const int due = run->step * REPORTS / steps > report;
        if (run->o->quiet) continue;
        if (due) run->held_out = held_out_loss(run, GLIMPSE, 0);
        if (due) report = run->step * REPORTS / steps;
        if (terminal || due) print_progress(run, terminal ? "\r" : "\n");
    }
    if (terminal && !run->o->quiet) putchar('\n');
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
    const float *logits = p->logits.data;
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
    uint8_t sample[CONTEXT + SAMPLE_BYTES] = { 0 };
    pass *p = pass_make(&run->m, 1);
    memcpy(sample, run->t.bytes + run->t.train_end - CONTEXT, CONTEXT);
    for (int i = CONTEXT; i < CONTEXT + SAMPLE_BYTES; i++) {
        set_window(p, 0, sample, i);
        embed_windows(p);
        forward(p, 0);
        sample[i] = draw_byte(p, &run->random);
    }
    pass_release(p);
    printf("\nsample, its first %d bytes from the text\n\n", CONTEXT);
    print_wrapped(sample, CONTEXT + SAMPLE_BYTES);
}

static void print_heading(const training *run)
{
    const settings *s = &run->m.s;
    printf("%s: %lld bytes, the last %lld held out\n", run->o->text_path, (long long)run->t.size,
        (long long)(run->t.size - run->t.train_end));
    printf("%lld weights: %d blocks, top %d of %d experts; %lld steps of %d x %d windows of %lld bytes\n",
        (long long)model_elements(&run->m), s->blocks, s->choices, s->experts, (long long)run->o->steps, MICRO_BATCHES,
        WINDOWS, (long long)s->context);
}

/* The verdict on the trained model; returns the exit status. */
static int judge(training *run, double start)
{
    const double bigram = bigram_loss(&run->t);
    const double bypassed = held_out_loss(run, INT64_MAX, 1);
    const double held_out = held_out_loss(run, INT64_MAX, 0);
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

static int run_training(const options *o)
{
    const settings s = {
        .dtype = TEGROUP_DTYPE_F32, .compute = TEGROUP_COMPUTE_F32, .context = CONTEXT, .embed = 32, .width = 128,
        .hidden = 128, .blocks = 2, .experts = 8, .choices = 2, .threads = (int32_t)o->threads, .balance = 0.02
    };
    const double start = seconds();
    static training run;
    run.o = o;
    run.random = (uint64_t)o->seed;
    if (!text_load(&run.t, o->text_path)) return 2;
    FILE *weights = fopen(o->weights_path, "wb"); /* before the work, not after it */
    if (!weights) {
        fprintf(stderr, "train_moe: cannot write '%s': %s\n", o->weights_path, strerror(errno));
        free(run.t.bytes);
        return 2;
    }
    model_make(&run.m, &s, random_bits(&run.random));
    run.p = pass_make(&run.m, WINDOWS);
    print_heading(&run);
    train(&run);
    const int saved = save(&run.m, o->weights_path, weights);
    const int status = judge(&run, start);
    pass_release(run.p);
    release(&run.m.owner);
    free(run.t.bytes);
    return saved ? status : 1;
}

int main(int count, char **arguments)
{
    options o = { .weights_path = "train_moe.safetensors", .steps = DEFAULT_STEPS, .seed = 1 };
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
    return o.check ? check_gradients((uint64_t)o.seed, (int)o.threads, o.flipped) : run_training(&o);
}
