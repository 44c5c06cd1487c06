/* mpicc -O2 -fopenmp -I. examples/ep/ep_mpi.c -o ep_mpi -lm && mpirun -n 2 ./ep_mpi */

/* Expert parallelism on CPUs: an MoE layer of ep_layer.h over MPI, forward, dgrad and wgrad, and every result bit for bit
 * that of one rank with all tokens and all experts; then tokens dispatched in FP8.
 *
 *     mpirun -n RANKS ./ep_mpi [--bf16] [--messages] [--tokens-once] [--sums-once] [--tokens N] [--k N] [--steps N]
 *                              [--timeout SECONDS] [--fault NAME]
 *     mpirun -n RANKS ./ep_mpi --train TEXT [--messages] [--steps N]      a small language model: ep_train.h
 *
 * The windows are memory that the ranks of one host share (MPI-3), so that rows are stored straight into the
 * owner's. With --messages each rank keeps its window to itself, and rows travel by MPI_Isend and MPI_Irecv. With
 * --tokens-once a token crosses to each rank once, with --sums-once its results come back as one sum, too, with
 * other roundings. A fault shows what happens when something is wrong: gone, late, stops (between forward and
 * dgrad), dead, small, counts (others are told others), hostile (all are told one below 0), misaligned. A rank that
 * notices says so in one line, and all of them end with a status that is not 0. */
#define _POSIX_C_SOURCE 200809L
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

#include <mpi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int rank = -1, ranks; /* -1: not known yet */
static double patience = 60;

static void give_up(const char *format, ...) {
    char line[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "ep_mpi: rank %d: %s\n", rank, line); /* at once: others write, too */
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}
/* What MPI itself waits for, before the first step and after the last, ends with the patience. */
static char too_late_line[160];
static void too_late(int number) {
    (void)number;
    if (write(2, too_late_line, strlen(too_late_line)) < 0) _exit(2);
    _exit(1);
}
static void within_patience(const char *what) {
    if (rank < 0) snprintf(too_late_line, sizeof too_late_line, "ep_mpi: %s took longer than %g s\n", what, patience);
    else
        snprintf(too_late_line, sizeof too_late_line, "ep_mpi: rank %d: %s: not all ranks came within %g s\n", rank,
                 what, patience);
    signal(SIGALRM, too_late);
    alarm((unsigned)patience + 1);
}
static void without_limit(void) { alarm(0); }

static void *ep_memory(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, TEGROUP_ALIGNMENT, bytes + 1) != 0)
        give_up("no memory for %lu bytes", (unsigned long)bytes);
    return memset(memory, 0, bytes + 1);
}
static void ep_put(void *there, const void *here, size_t bytes) { memcpy(there, here, bytes); }
static void ep_get(void *here, const void *there, size_t bytes) { memcpy(here, there, bytes); }

#include "ep_check.h"
#include "ep_train.h"

/* ---- the transport ---- */

typedef struct mpi_windows {
    MPI_Win handle;
    void **addresses; /* [ranks] */
    size_t counts_at;
    enum { HONEST, TELLS_OTHERS, TELLS_ALL } lies; /* of this rank's counts */
} mpi_windows;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static void nap(double seconds_of_it) {
    const struct timespec long_enough = {(time_t)seconds_of_it, 0};
    nanosleep(&long_enough, NULL);
}
static void wait_for(MPI_Request *request, const char *what) {
    const double last = seconds() + patience;
    const struct timespec moment = {0, 20000};
    for (int done = 0; !done;) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done && seconds() > last) give_up("%s: not all ranks came within %g s", what, patience);
        if (!done) nanosleep(&moment, NULL);
    }
}

/* The ranks agree where the least digest is the largest one. */
static void mpi_meet(void *self, const tegroup_ep_report *report) {
    mpi_windows *windows = (mpi_windows *)self;
    uint64_t mine[2] = {report ? report->digest : 0, report ? ~report->digest : UINT64_MAX}, least[2];
    MPI_Request request;
    MPI_Win_sync(windows->handle);
    MPI_Iallreduce(mine, least, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD, &request);
    wait_for(&request, "meeting");
    MPI_Win_sync(windows->handle);
    if (least[0] != ~least[1]) give_up("the ranks do not have the same counts");
}
static void mpi_share_counts(void *self, const int32_t *counts, int32_t experts) {
    mpi_windows *windows = (mpi_windows *)self;
    const size_t bytes = sizeof *counts * (size_t)experts;
    for (int r = 0; r < ranks; r++) {
        int32_t *there = (int32_t *)(void *)((char *)windows->addresses[r] + windows->counts_at + (size_t)rank * bytes);
        memcpy(there, counts, bytes);
        if (windows->lies == TELLS_OTHERS && r != rank) there[0]++;
        if (windows->lies == TELLS_ALL) there[0] = INT32_MIN;
    }
    mpi_meet(self, NULL);
}
static void mpi_gather_counts(void *self, const int32_t *counts, int32_t experts) {
    mpi_windows *windows = (mpi_windows *)self;
    MPI_Request request;
    MPI_Iallgather(counts, experts, MPI_INT32_T, (char *)windows->addresses[rank] + windows->counts_at, experts,
                   MPI_INT32_T, MPI_COMM_WORLD, &request);
    wait_for(&request, "counts");
}
static void mpi_exchange(void *self, const ep_message *sends, const ep_message *receives, int32_t count) {
    MPI_Request *requests = (MPI_Request *)malloc(2 * sizeof *requests * (size_t)count);
    (void)self;
    for (int32_t i = 0; i < count; i++) {
        MPI_Irecv(receives[i].data, (int)receives[i].bytes, MPI_BYTE, receives[i].peer, 0, MPI_COMM_WORLD,
                  &requests[2 * i]);
        MPI_Isend(sends[i].data, (int)sends[i].bytes, MPI_BYTE, sends[i].peer, 0, MPI_COMM_WORLD, &requests[2 * i + 1]);
    }
    for (int32_t i = 0; i < 2 * count; i++) wait_for(&requests[i], "rows");
    free(requests);
}

/* Gradients and losses that every rank has a part of. */
static void sum_floats(float *x, int64_t count) {
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
    wait_for(&request, "gradients");
}
static void sum_doubles(double *x, int64_t count) {
    MPI_Request request;
    MPI_Iallreduce(MPI_IN_PLACE, x, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
    wait_for(&request, "losses");
}

/* Ranks that run another layer would store beyond each other's windows. */
static void mpi_agree(const ep_size *size, size_t bytes, int messages) {
    const uint64_t own[] = {(uint64_t)size->dtype,  (uint64_t)size->experts, (uint64_t)size->k,
                            (uint64_t)size->tokens, (uint64_t)size->width,   (uint64_t)size->hidden,
                            (uint64_t)bytes,        (uint64_t)messages,      (uint64_t)size->capacity,
                            (uint64_t)size->crossing};
    enum { COUNT = sizeof own / sizeof *own };
    uint64_t mine[2 * COUNT], least[2 * COUNT];
    for (int i = 0; i < COUNT; i++) mine[2 * i] = own[i], mine[2 * i + 1] = ~own[i];
    MPI_Request request;
    MPI_Iallreduce(mine, least, 2 * COUNT, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD, &request);
    wait_for(&request, "comparing the layers");
    for (int i = 0; i < COUNT; i++)
        if (least[2 * i] != ~least[2 * i + 1]) give_up("the ranks do not run the same layer");
}

/* A window each, in memory that all ranks of the host see at addresses of their own. */
static void mpi_windows_make(mpi_windows *windows, size_t bytes, int misaligned) {
    const size_t page = 4096, room = bytes + 2 * page;
    MPI_Comm host;
    void *mine;
    int together;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &together);
    if (together != ranks) give_up("%d of %d ranks share this host's memory; --messages needs none", together, ranks);
    MPI_Win_allocate_shared((MPI_Aint)((room + page - 1) / page * page), 1, MPI_INFO_NULL, host, &mine,
                            &windows->handle);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, windows->handle);
    windows->addresses = (void **)malloc(sizeof *windows->addresses * (size_t)ranks);
    for (int r = 0; r < ranks; r++) {
        MPI_Aint size;
        int unit;
        MPI_Win_shared_query(windows->handle, r, &size, &unit, &windows->addresses[r]);
        /* mappings begin at pages, so that the next multiple of one is the same byte to everybody */
        windows->addresses[r] = (char *)windows->addresses[r] + (page - (uintptr_t)windows->addresses[r] % page) % page
                                + (misaligned ? 8 : 0);
    }
}

/* ---- the program ---- */

enum { EXPERTS_OF_A_RANK = 4 };

typedef struct options {
    tegroup_dtype dtype;
    int messages, tokens, k, steps; /* tokens of a rank; steps: 0 = 3, or 400 to train */
    ep_crossing crossing;
    const char *fault, *text;
} options;
static int has_fault(const options *o, const char *name) { return strcmp(o->fault, name) == 0; }

static options parse(int argc, char **argv) {
    static const char *const faults[] = {"",     "gone",   "late",    "stops",     "dead",
                                         "small", "counts", "hostile", "misaligned"};
    options o = {TEGROUP_DTYPE_F32, 0, 48, 2, 0, EP_EACH_SLOT, "", NULL};
    size_t known = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bf16") == 0) o.dtype = TEGROUP_DTYPE_BF16;
        else if (strcmp(argv[i], "--messages") == 0) o.messages = 1;
        else if (strcmp(argv[i], "--tokens-once") == 0) o.crossing = EP_TOKENS_ONCE;
        else if (strcmp(argv[i], "--sums-once") == 0) o.crossing = EP_SUMS_ONCE;
        else if (strcmp(argv[i], "--train") == 0 && i + 1 < argc) o.text = argv[++i];
        else if (strcmp(argv[i], "--tokens") == 0 && i + 1 < argc) o.tokens = atoi(argv[++i]);
        else if (strcmp(argv[i], "--k") == 0 && i + 1 < argc) o.k = atoi(argv[++i]);
        else if (strcmp(argv[i], "--steps") == 0 && i + 1 < argc) o.steps = atoi(argv[++i]);
        else if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc) patience = atof(argv[++i]);
        else if (strcmp(argv[i], "--fault") == 0 && i + 1 < argc) o.fault = argv[++i];
        else give_up("unknown option %s", argv[i]);
    }
    while (known < sizeof faults / sizeof *faults && strcmp(o.fault, faults[known]) != 0) known++;
    if (known == sizeof faults / sizeof *faults) give_up("unknown fault %s", o.fault);
    if (!(patience > 0) || o.steps < 0) give_up("--timeout must be above 0, and --steps not below");
    if (o.tokens < 1 || o.tokens > 10000 || o.k < 1 || o.k > EXPERTS_OF_A_RANK * ranks)
        give_up("--tokens must be 1 to 10000, and --k 1 to %d", EXPERTS_OF_A_RANK * ranks);
    if (o.text && (o.dtype != TEGROUP_DTYPE_F32 || TRAIN_EXPERTS % ranks != 0))
        give_up("--train is in F32, on 1, 2, 4 or 8 ranks");
    if (o.messages && (has_fault(&o, "counts") || has_fault(&o, "hostile") || has_fault(&o, "misaligned")))
        give_up("--fault %s needs windows, not --messages", o.fault);
    if (o.messages && o.crossing) give_up("--tokens-once and --sums-once need windows, not --messages");
    if (o.text && o.fault[0]) give_up("--fault is not for --train");
    if (ranks < 2 && o.fault[0] && !has_fault(&o, "small")) give_up("--fault %s takes two ranks", o.fault);
    if (o.steps == 0) o.steps = o.text ? 400 : 3;
    return o;
}

int main(int argc, char **argv) {
    static ep_layer layer;
    static ep_one_rank one;
    static mpi_windows windows;
    size_t at[EP_PIECES], bytes;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--timeout") == 0 && atof(argv[i + 1]) > 0) patience = atof(argv[i + 1]);
    within_patience("starting MPI");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const options o = parse(argc, argv);
    const int is_last = rank == ranks - 1; /* which is the one that does wrong */
    ep_size size = {TEGROUP_SPACE_HOST, o.dtype, ranks, rank, EXPERTS_OF_A_RANK * ranks, o.k, o.tokens, 192, 32, 0,
                    o.crossing};
    if (o.text) {
        size.experts = TRAIN_EXPERTS;
        size.tokens = BATCH / ranks;
        size.width = CONTEXT * EMBED;
    }
    size.capacity = has_fault(&o, "small") ? 20 : ranks * size.tokens * size.k;
    within_patience("making the windows");
    bytes = ep_window(&size, size.capacity, at);
    mpi_agree(&size, bytes, o.messages);
    if (has_fault(&o, "late") && is_last) nap(2 * patience + 2);
    windows.counts_at = at[EP_COUNTS];
    if (is_last && has_fault(&o, "counts")) windows.lies = TELLS_OTHERS;
    if (is_last && has_fault(&o, "hostile")) windows.lies = TELLS_ALL;
    if (!o.messages) mpi_windows_make(&windows, bytes, has_fault(&o, "misaligned"));
    else {
        windows.addresses = (void **)calloc((size_t)ranks, sizeof *windows.addresses);
        windows.addresses[rank] = ep_memory(bytes);
    }
    const ep_transport transport = {&windows, o.messages ? mpi_gather_counts : mpi_share_counts,
                                    o.messages ? NULL : mpi_meet, o.messages ? mpi_exchange : NULL};
    ep_layer_make(&layer, &size, windows.addresses, !o.messages, 1);
    without_limit();
    if (o.text) {
        const int status = train(&layer, transport, o.text, o.steps, sum_floats, sum_doubles);
        within_patience("the end");
        MPI_Finalize();
        return status;
    }
    ep_one_rank_make(&one, &size);
    for (int step = 1; step <= o.steps; step++) {
        ep_layer_fill(&layer, (uint64_t)step);
        if (has_fault(&o, "gone") && is_last) nap(2 * patience + 2); /* it lives on, but does not come */
        if (has_fault(&o, "dead") && is_last) raise(SIGKILL);
        ep_forward(&layer, &transport, NULL);
        ep_look(&layer);
        if (has_fault(&o, "stops") && is_last) nap(2 * patience + 2);
        ep_dgrad(&layer, &transport, NULL);
        ep_wgrad(&layer, NULL);
        ep_one_rank_run(&one, &size, (uint64_t)step, NULL);
        ep_compare(&layer, &one);
    }
    if (rank == 0)
        printf("%d ranks, %s, by %s: output and gradients of %d steps %s of one rank\n", ranks,
               tegroup_dtype_name(o.dtype), o.messages ? "messages" : "stores into windows", o.steps,
               ep_kinship(&size));
    if (!o.messages) {
        ep_quantised both;
        ep_quantised_make(&both, &layer, &transport, NULL);
        ep_look(&layer);
        const long long rows = (long long)ep_quantised_compare(&both, &layer);
        printf("rank %d: FP8 with 1x128 scales: %lld rows quantised before the dispatch are those quantised after it\n",
               rank, rows);
    }
    within_patience("the end");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
