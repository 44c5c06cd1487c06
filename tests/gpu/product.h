/* One product in device memory of its own. The place of an element in its tensor alone decides its value, so that the host
 * can work out any element of any result, however large, and every program sees the same operands. */
#ifndef TEGROUP_TESTS_PRODUCT_H
#define TEGROUP_TESTS_PRODUCT_H

#include "mirror.h"
#include <cuda_fp16.h>

static inline __host__ __device__ uint64_t stirred(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Of either sign, from 2^-7 to 2, with 8 significant bits: exact in every type here, while sums of products are not exact
 * in F32, so that their bits tell one order from another. */
static inline __host__ __device__ float hashed(uint64_t seed, int64_t i) {
    const uint32_t h = (uint32_t)(stirred(seed * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)i) >> 40);
    union { uint32_t bits; float value; } x;
    x.bits = (h & 1) << 31 | (127 - (h >> 1 & 7)) << 23 | (h >> 4 & 127) << 16;
    return x.value;
}

/* Elements number `first` and on. */
static __global__ void fill_hashed(tegroup_dtype dtype, void *data, int64_t count, uint64_t seed, int64_t first) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const float x = hashed(seed, first + i);
        if (dtype == TEGROUP_DTYPE_F32) ((float *)data)[i] = x;
        else if (dtype == TEGROUP_DTYPE_F16) ((__half *)data)[i] = __float2half_rn(x);
        else ((uint16_t *)data)[i] = (uint16_t)(__float_as_uint(x) >> 16);
    }
}

/* *sum becomes a number that every byte and its place have a part in; bytes must be a multiple of 2. */
static __global__ void add_hash(const uint16_t *data, int64_t count, unsigned long long *sum) {
    unsigned long long mine = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        mine += stirred(((uint64_t)i << 16 | data[i]) + UINT64_C(0x9E3779B97F4A7C15));
    atomicAdd(sum, mine);
}

static __global__ void count_other_than(const unsigned char *data, int64_t bytes, unsigned char value, unsigned long long *count) {
    unsigned long long mine = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes; i += (int64_t)gridDim.x * blockDim.x) mine += data[i] != value;
    if (mine != 0) atomicAdd(count, mine);
}

static __global__ void count_different(const unsigned char *x, const unsigned char *y, int64_t bytes, unsigned long long *count) {
    unsigned long long mine = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes; i += (int64_t)gridDim.x * blockDim.x) mine += x[i] != y[i];
    if (mine != 0) atomicAdd(count, mine);
}

static unsigned long long product_steps_left(void) {
    unsigned long long *on_device, left;
    MUST(cudaMalloc((void **)&on_device, sizeof left));
    MUST(sm90_steps_left(on_device));
    MUST(cudaMemcpy(&left, on_device, sizeof left, cudaMemcpyDeviceToHost));
    MUST(cudaFree(on_device));
    return left;
}
static __global__ void gather(const void *data, int32_t element_bytes, const int64_t *from, int32_t count, void *to) {
    for (int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += (int32_t)(gridDim.x * blockDim.x)) {
        if (element_bytes == 4) ((uint32_t *)to)[i] = ((const uint32_t *)data)[from[i]];
        else ((uint16_t *)to)[i] = ((const uint16_t *)data)[from[i]];
    }
}

enum { GUARD_VALUE = 0xA5 };

typedef struct product {
    tegroup_op op;
    tegroup_dtype in, out;
    int32_t groups;
    int64_t rows, n, k; /* rows: capacity */
    uint64_t seed;
    int bias;       /* FORWARD: a bias of D's type */
    int accumulate; /* WGRAD: D, hashed like the operands where it is poisoned otherwise, is added to */
    int64_t counts[TEGROUP_MAX_GROUPS], start[TEGROUP_MAX_GROUPS], filled; /* as set last; filled: rows that belong to a group */
    /* One group has the numbers of another place: its rows those from moved_row on, its matrices those of group moved_matrix.
     * Zeros: group 0 has its own. */
    int32_t moved, moved_matrix;
    int64_t moved_row;
    tegroup_gemm_desc desc;
    tegroup_plan plan;
    tegroup_error error;
    int64_t a_count, b_count, d_count; /* elements */
    size_t snapshot_bytes;
    unsigned char *d_memory;           /* D between guard bands */
    unsigned long long *number;        /* on the device */
    double *a_host, *b_host;           /* the operands as numbers; made when asked for */
} product;

static uint64_t product_seed(const product *p, char operand) {
    return operand == 'a' ? p->seed * 2 : operand == 'b' ? p->seed * 2 + 1 : p->seed * 2 + ((uint64_t)operand << 40);
}

/* Elements [at, at + count) of an operand get the numbers of those from `first` on. */
static void product_number(const product *p, char operand, tegroup_dtype dtype, void *data, int64_t at, int64_t count, int64_t first, cudaStream_t stream) {
    if (count > 0) fill_hashed<<<1024, 256, 0, stream>>>(dtype, (char *)data + at * (int64_t)size_of(dtype), count, product_seed(p, operand), first);
}

/* Everything that a run writes to as it must be before. */
static void product_poison(product *p, cudaStream_t stream) {
    const int64_t matrix = p->n * p->k;
    if (p->accumulate) {
        product_number(p, 'c', p->out, p->desc.d.data, 0, p->d_count, 0, stream);
        if (p->moved < p->groups) product_number(p, 'c', p->out, p->desc.d.data, p->moved * matrix, matrix, p->moved_matrix * matrix, stream);
    } else MUST(cudaMemsetAsync(p->desc.d.data, 0xFF, (size_t)p->d_count * size_of(p->out), stream));
    if (p->desc.options.workspace != NULL) MUST(cudaMemsetAsync(p->desc.options.workspace, 0xFF, p->desc.options.workspace_bytes, stream));
}

/* The operands' numbers, after a group was moved or its rows lie elsewhere. */
static void product_fill(product *p, cudaStream_t stream) {
    const int32_t g = p->moved;
    const int64_t matrix = p->n * p->k, acols = p->op == TEGROUP_OP_FORWARD ? p->k : p->n;
    product_number(p, 'a', p->in, p->desc.a.data, 0, p->a_count, 0, stream);
    product_number(p, 'b', p->in, p->desc.b.data, 0, p->b_count, 0, stream);
    if (p->bias) product_number(p, 'e', p->out, p->desc.bias.data, 0, p->groups * p->n, 0, stream);
    if (g >= p->groups) return;
    product_number(p, 'a', p->in, p->desc.a.data, p->start[g] * acols, p->counts[g] * acols, p->moved_row * acols, stream);
    if (p->op == TEGROUP_OP_WGRAD) product_number(p, 'b', p->in, p->desc.b.data, p->start[g] * p->k, p->counts[g] * p->k, p->moved_row * p->k, stream);
    else product_number(p, 'b', p->in, p->desc.b.data, g * matrix, matrix, p->moved_matrix * matrix, stream);
    if (p->bias) product_number(p, 'e', p->out, p->desc.bias.data, g * p->n, p->n, p->moved_matrix * p->n, stream);
    MUST(cudaGetLastError());
}

/* Set op, in, out, groups, rows, n, k, seed, and bias or accumulate, before; the rest is 0. */
static void product_make(product *p, tegroup_backend backend) {
    tegroup_gemm_desc *d = &p->desc;
    tegroup_layout layout;
    const int wgrad = p->op == TEGROUP_OP_WGRAD, forward = p->op == TEGROUP_OP_FORWARD;
    const int64_t acols = forward ? p->k : p->n, bcols = p->k, dcols = forward ? p->n : p->k;
    void *a, *b, *bias = NULL, *sizes, *snapshot;
    memset(d, 0, sizeof *d);
    d->struct_size = sizeof *d;
    d->options.backend = backend;
    d->options.cublaslt = mirror_cublaslt;
    p->a_host = p->b_host = NULL;
    p->a_count = p->rows * acols;
    p->b_count = wgrad ? p->rows * bcols : p->groups * p->n * p->k;
    p->d_count = wgrad ? p->groups * p->n * p->k : p->rows * dcols;
    MUST(cudaMalloc(&a, (size_t)p->a_count * size_of(p->in) + 1));
    MUST(cudaMalloc(&b, (size_t)p->b_count * size_of(p->in) + 1));
    /* Kernels that fill them are none that initcheck follows. */
    MUST(cudaMemset(a, 0, (size_t)p->a_count * size_of(p->in)));
    MUST(cudaMemset(b, 0, (size_t)p->b_count * size_of(p->in)));
    const size_t d_bytes = (size_t)p->d_count * size_of(p->out);
    MUST(cudaMalloc((void **)&p->d_memory, d_bytes + 2 * GUARD_BYTES));
    MUST(cudaMemset(p->d_memory, GUARD_VALUE, GUARD_BYTES));
    MUST(cudaMemset(p->d_memory + GUARD_BYTES + d_bytes, GUARD_VALUE, GUARD_BYTES));
    if (p->bias) {
        MUST(cudaMalloc(&bias, (size_t)(p->groups * p->n) * size_of(p->out) + 1));
        MUST(cudaMemset(bias, 0, (size_t)(p->groups * p->n) * size_of(p->out)));
    }
    MUST(cudaMalloc((void **)&p->number, sizeof *p->number));
    const tegroup_space space = has_host_sizes(d) ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_DEVICE;
    tegroup_shape rows = tegroup_shape_of(p->groups, p->rows, acols, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, space));
    if (tegroup_snapshot_layout(&rows, &layout, NULL) != TEGROUP_OK) exit(1);
    p->snapshot_bytes = layout.total_bytes;
    if (space == TEGROUP_SPACE_HOST) {
        MUST(cudaMallocHost(&sizes, sizeof p->counts));
        MUST(cudaMallocHost(&snapshot, layout.total_bytes));
    } else {
        MUST(cudaMalloc(&sizes, sizeof p->counts));
        MUST(cudaMalloc(&snapshot, layout.total_bytes));
    }
    d->op = p->op;
    d->space = TEGROUP_SPACE_DEVICE;
    rows.row_sizes.data = sizes;
    rows.snapshot = snapshot; /* prepared before each run, at the same address */
    d->a = tegroup_tensor_of(rows, acols, p->in, a);
    d->b = wgrad ? tegroup_tensor_of(rows, bcols, p->in, b) : tegroup_tensor_uniform(p->groups, p->n, p->k, p->in, b);
    void *out = p->d_memory + GUARD_BYTES;
    d->d = wgrad ? tegroup_tensor_uniform(p->groups, p->n, p->k, p->out, out)
                 : tegroup_tensor_of(rows, dcols, p->out, out);
    if (p->bias) d->bias = tegroup_tensor_uniform(p->groups, 1, p->n, p->out, bias);
    d->accumulate = p->accumulate;
    product_fill(p, NULL);
    product_poison(p, NULL);
    MUST(cudaDeviceSynchronize());
}

static void product_counts(product *p, const int64_t *counts) {
    p->filled = 0;
    for (int32_t g = 0; g < p->groups; g++) {
        p->counts[g] = counts[g];
        p->start[g] = p->filled;
        p->filled += counts[g];
    }
    MUST(cudaMemcpy((void *)p->desc.a.shape.row_sizes.data, p->counts, (size_t)p->groups * 8, cudaMemcpyDefault));
}

static void product_workspace(product *p, const tegroup_plan *plan) {
    p->desc.options.workspace_bytes = plan->workspace_bytes;
    if (p->desc.options.workspace_bytes > 0) MUST(cudaMalloc(&p->desc.options.workspace, p->desc.options.workspace_bytes));
}

static tegroup_status product_plan(product *p) {
    tegroup_status status = tegroup_plan_make(&p->desc, NULL, &p->plan, &p->error);
    if (status == TEGROUP_OK) product_workspace(p, &p->plan);
    return status;
}

static tegroup_status product_prepare(product *p, cudaStream_t stream) {
    tegroup_shape rows = p->desc.a.shape;
    return tegroup_shape_prepare(&rows, (void *)rows.snapshot, p->snapshot_bytes, stream, &p->error);
}

static tegroup_status product_run(product *p, const tegroup_plan *plan, cudaStream_t stream) {
    tegroup_status status = product_prepare(p, stream);
    return status != TEGROUP_OK ? status : tegroup_gemm(plan, &p->desc, stream, &p->error);
}

/* A hash of all of D, tails included. Waits for the stream. */
static uint64_t product_hash(const product *p, cudaStream_t stream) {
    unsigned long long sum;
    MUST(cudaMemsetAsync(p->number, 0, sizeof *p->number, stream));
    add_hash<<<512, 256, 0, stream>>>((const uint16_t *)p->desc.d.data, p->d_count * (int64_t)size_of(p->out) / 2, p->number);
    MUST(cudaMemcpyAsync(&sum, p->number, sizeof sum, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    return sum;
}

static void product_free(product *p) {
    const int on_host = has_host_sizes(&p->desc);
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(p->desc.a.data));
    MUST(cudaFree(p->desc.b.data));
    MUST(cudaFree(p->desc.bias.data));
    MUST(cudaFree(p->d_memory));
    MUST(cudaFree(p->number));
    MUST(cudaFree(p->desc.options.workspace));
    MUST(on_host ? cudaFreeHost((void *)p->desc.a.shape.row_sizes.data) : cudaFree((void *)p->desc.a.shape.row_sizes.data));
    MUST(on_host ? cudaFreeHost((void *)p->desc.a.shape.snapshot) : cudaFree((void *)p->desc.a.shape.snapshot));
    free(p->a_host);
    free(p->b_host);
}

/* ---- what the result must be ------------------------------------------------------------------------------------------ */

static double product_a(const product *p, int64_t i) { return p->a_host != NULL ? p->a_host[i] : hashed(product_seed(p, 'a'), i); }
static double product_b(const product *p, int64_t i) { return p->b_host != NULL ? p->b_host[i] : hashed(product_seed(p, 'b'), i); }

/* Element (i, j) of group g, and the bound of tests/unit/support.h. */
static double product_want(const product *p, int32_t g, int64_t i, int64_t j, double *bound) {
    const int64_t n = p->n, k = p->k, row = g == p->moved ? p->moved_row : p->start[g], matrix = g == p->moved ? p->moved_matrix : g;
    const int64_t length = p->op == TEGROUP_OP_FORWARD ? k : p->op == TEGROUP_OP_DGRAD ? n : p->counts[g];
    double sum = 0, size = 0;
    for (int64_t q = 0; q < length; q++) {
        const double term = p->op == TEGROUP_OP_FORWARD ? product_a(p, (row + i) * k + q) * product_b(p, (matrix * n + j) * k + q)
                            : p->op == TEGROUP_OP_DGRAD ? product_a(p, (row + i) * n + q) * product_b(p, (matrix * n + q) * k + j)
                                                        : product_a(p, (row + q) * n + i) * product_b(p, (row + q) * k + j);
        sum += term;
        size += fabs(term);
    }
    const double u = SUPPORT_SUM_ROUNDING, c = p->accumulate ? hashed(product_seed(p, 'c'), (matrix * n + i) * k + j) : 0,
                 e = p->bias ? hashed(product_seed(p, 'e'), matrix * n + j) : 0, total = sum + c + e;
    *bound = check_bound(length, u, size, p->out, total) + 2 * u * fabs(c) + 2 * u * fabs(e);
    return total;
}

static int64_t product_element(const product *p, int32_t g, int64_t i, int64_t j) {
    return p->op == TEGROUP_OP_WGRAD ? (g * p->n + i) * p->k + j : (p->start[g] + i) * p->desc.d.shape.cols + j;
}
static int64_t product_lines(const product *p, int32_t g) { return p->op == TEGROUP_OP_WGRAD ? p->n : p->counts[g]; }

/* Bytes of D's guard bands that are no longer what they were. */
static int64_t product_bands_changed(const product *p) {
    const size_t d_bytes = (size_t)p->d_count * size_of(p->out);
    unsigned char bands[2 * GUARD_BYTES];
    int64_t changed = 0;
    MUST(cudaMemcpy(bands, p->d_memory, GUARD_BYTES, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(bands + GUARD_BYTES, p->d_memory + GUARD_BYTES + d_bytes, GUARD_BYTES, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof bands; i++) changed += bands[i] != GUARD_VALUE;
    return changed;
}

/* Every element of D; what no group owns must still be what product_poison wrote: *disturbed counts its bytes otherwise, and
 * those of guard bands. */
static verdict product_compare(product *p, int64_t *disturbed) {
    verdict v = {0, 0, 0, 0, 0};
    const size_t bytes = (size_t)p->d_count * size_of(p->out);
    unsigned char *d = (unsigned char *)malloc(bytes);
    if (p->a_host == NULL) {
        double *a = (double *)malloc((size_t)p->a_count * sizeof(double)), *b = (double *)malloc((size_t)p->b_count * sizeof(double));
        for (int64_t i = 0; i < p->a_count; i++) a[i] = product_a(p, i);
        for (int64_t i = 0; i < p->b_count; i++) b[i] = product_b(p, i);
        p->a_host = a;
        p->b_host = b;
    }
    MUST(cudaMemcpy(d, p->desc.d.data, bytes, cudaMemcpyDeviceToHost));
    for (int32_t g = 0; g < p->groups; g++)
        for (int64_t i = 0; i < product_lines(p, g); i++)
            for (int64_t j = 0; j < p->desc.d.shape.cols; j++) {
                double bound, want = product_want(p, g, i, j, &bound);
                compare(&v, load(p->out, d, product_element(p, g, i, j)), want, bound, 0);
            }
    *disturbed = product_bands_changed(p);
    if (p->op != TEGROUP_OP_WGRAD)
        for (size_t e = (size_t)(p->filled * p->desc.d.shape.cols) * size_of(p->out); e < bytes; e++) *disturbed += d[e] != 0xFF;
    free(d);
    return v;
}

/* The same for `count` elements, of which the last group's last line and last element are some. A moved group's numbers stand
 * in product_want, so that they are checked like any. */
static verdict product_sample(const product *p, int32_t count, rng *r, int64_t *disturbed) {
    verdict v = {0, 0, 0, 0, 0};
    struct place { int32_t g; int64_t i, j; } *places = (struct place *)malloc((size_t)count * sizeof *places);
    int64_t *elements = (int64_t *)malloc((size_t)count * 8), *from;
    const size_t bytes = (size_t)count * size_of(p->out);
    unsigned char *got = (unsigned char *)malloc(bytes), *to;
    unsigned long long changed = 0;
    const int64_t cols = p->desc.d.shape.cols;
    if (p->groups == 0 || (p->op != TEGROUP_OP_WGRAD && p->filled == 0)) count = 0;
    MUST(cudaMalloc((void **)&from, (size_t)count * 8 + 1));
    MUST(cudaMalloc((void **)&to, bytes + 1));
    MUST(cudaMemset(to, 0, bytes)); /* initcheck does not follow gather */
    for (int32_t s = 0; s < count; s++) {
        int32_t g = s < count / 4 ? p->groups - 1 : (int32_t)rng_int(r, 0, p->groups - 1);
        while (product_lines(p, g) == 0) g = (g + p->groups - 1) % p->groups;
        places[s].g = g;
        places[s].i = s < count / 4 ? product_lines(p, g) - 1 : rng_int(r, 0, product_lines(p, g) - 1);
        places[s].j = s == 0 ? cols - 1 : rng_int(r, 0, cols - 1);
        elements[s] = product_element(p, g, places[s].i, places[s].j);
    }
    copy_up(from, elements, (size_t)count * 8);
    gather<<<64, 256>>>(p->desc.d.data, (int32_t)size_of(p->out), from, count, to);
    MUST(cudaMemcpy(got, to, (size_t)count * size_of(p->out), cudaMemcpyDeviceToHost));
    for (int32_t s = 0; s < count; s++) {
        double bound, want = product_want(p, places[s].g, places[s].i, places[s].j, &bound);
        compare(&v, load(p->out, got, s), want, bound, 0);
    }
    if (p->op != TEGROUP_OP_WGRAD) {
        const int64_t owned = p->filled * cols * (int64_t)size_of(p->out), all = p->d_count * (int64_t)size_of(p->out);
        MUST(cudaMemset(p->number, 0, sizeof *p->number));
        count_other_than<<<1024, 256>>>((const unsigned char *)p->desc.d.data + owned, all - owned, 0xFF, p->number);
        MUST(cudaMemcpy(&changed, p->number, sizeof changed, cudaMemcpyDeviceToHost));
    }
    *disturbed = (int64_t)changed + product_bands_changed(p);
    MUST(cudaFree(from));
    MUST(cudaFree(to));
    free(places);
    free(elements);
    free(got);
    return v;
}

#endif
