/* cc -O3 -march=native -fopenmp -I. tests/bench/bench_cpu.c -o bench_cpu -lopenblas -lm && ./bench_cpu [THREADS] */

/* tegroup's CPU backend against OpenBLAS sgemm called in a loop over the same groups: FP32, forward, n = k = 1024, two threads
 * each unless it is told another number. Contestants take turns; medians of many rounds. Prints one line for each number of rows a group. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <time.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc);
void openblas_set_num_threads(int threads);

enum { N = 1024, K = 1024, GROUPS = 8, ROUNDS = 15 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float *random_floats(size_t count) {
    float *x = malloc(count * sizeof *x);
    if (!x) exit(1);
    for (size_t i = 0; i < count; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}

static void *aligned(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, TEGROUP_ALIGNMENT, bytes ? bytes : 1)) exit(1);
    return p;
}

static void must(tegroup_status status, const tegroup_error *error) {
    char text[256];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(error, text, sizeof text);
    fprintf(stderr, "%s\n", text);
    exit(1);
}

int main(int argc, char **argv) {
    static const int64_t rows_a_group[] = {1, 16, 128, 1024};
    int failed = 0, threads = argc > 1 ? atoi(argv[1]) : 2;
    openblas_set_num_threads(threads);
    printf("%14s %16s %16s %8s\n", "rows a group", "tegroup GFLOP/s", "OpenBLAS GFLOP/s", "ratio");
    for (size_t s = 0; s < sizeof rows_a_group / sizeof *rows_a_group; s++) {
        int64_t rows = rows_a_group[s];
        float *x = random_floats((size_t)(GROUPS * rows * K)), *w = random_floats((size_t)GROUPS * N * K), *y = random_floats((size_t)(GROUPS * rows * N));
        double flops = 2.0 * GROUPS * (double)rows * N * K, tegroup_time[ROUNDS], openblas_time[ROUNDS];
        tegroup_gemm_desc desc = {0};
        tegroup_plan plan;
        tegroup_error error;
        desc.struct_size = sizeof desc;
        desc.op = TEGROUP_OP_FORWARD;
        desc.space = TEGROUP_SPACE_HOST;
        desc.a = tegroup_tensor_uniform(GROUPS, rows, K, TEGROUP_DTYPE_F32, x);
        desc.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F32, w);
        desc.d = tegroup_tensor_uniform(GROUPS, rows, N, TEGROUP_DTYPE_F32, y);
        desc.options.threads = threads;
        must(tegroup_plan_make(&desc, NULL, &plan, &error), &error);
        desc.options.workspace_bytes = plan.workspace_bytes;
        desc.options.workspace = aligned(desc.options.workspace_bytes);
        for (int r = -1; r < ROUNDS; r++) { /* round -1 warms up */
            double t0 = now(), t1, t2;
            must(tegroup_gemm(&plan, &desc, NULL, &error), &error);
            t1 = now();
            for (int g = 0; g < GROUPS; g++)
                cblas_sgemm(101, 111, 112, (int)rows, N, K, 1, x + g * rows * K, K, w + (size_t)g * N * K, K, 0, y + g * rows * N, N);
            t2 = now();
            if (r >= 0) tegroup_time[r] = t1 - t0;
            if (r >= 0) openblas_time[r] = t2 - t1;
        }
        qsort(tegroup_time, ROUNDS, sizeof(double), by_value);
        qsort(openblas_time, ROUNDS, sizeof(double), by_value);
        double ratio = openblas_time[ROUNDS / 2] / tegroup_time[ROUNDS / 2];
        printf("%14lld %16.1f %16.1f %8.2f\n", (long long)rows, flops / tegroup_time[ROUNDS / 2] * 1e-9, flops / openblas_time[ROUNDS / 2] * 1e-9, ratio);
        failed |= ratio < 0.25;
        free(x);
        free(w);
        free(y);
        free(desc.options.workspace);
    }
    if (failed) printf("a ratio is below 0.25\n");
    return failed;
}
