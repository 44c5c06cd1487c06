/* nvcc -t 0 -O3 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=sm_90a -Xcompiler -march=native,-fopenmp -DTRAIN_MOE_GPU -I. examples/train_moe.c examples/train_moe.cu -o train_moe_gpu -lm */

/* train_moe on a GPU: train_moe.c with this file in place of its CPU half. Here are tegroup's kernels, memory and the
 * graph, and the stages around the products, each as one plain kernel. Sums have a fixed order: a run repeats bit for bit. */
#define TEGROUP_EXTERN
/* What this program never runs, so that nvcc is done sooner: its products are of BF16 or, with TRAIN_MOE_FORMATS, of
 * what --format says, on kernels of tegroup's own. */
#define TEGROUP_NO_F16
#if !defined(TRAIN_MOE_FORMATS)
#define TEGROUP_NO_FP8
#endif
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

#include <stdio.h>
#include <stdlib.h>

#include "train_moe_shared.h"
#include "train_moe_gpu.h"

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP, CLASSES_MAX = THREADS, EMBED_MAX = 4 * WARP };
enum { MOST_THREADS = 1024, MOST_WARPS = MOST_THREADS / WARP }; /* where few blocks add up many rows */

static void must_cuda(cudaError_t code, const char *what)
{
    if (code == cudaSuccess) return;
    fprintf(stderr, "train_moe: %s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

static void launched(const char *kernel) { must_cuda(cudaGetLastError(), kernel); }

static unsigned blocks_for(int64_t count) { return (unsigned)((count + THREADS - 1) / THREADS); }

/* ---- Memory, stream, graph ---- */

cudaStream_t stream_gpu(char *name, size_t size)
{
    int device = 0;
    cudaDeviceProp properties;
    cudaStream_t stream = NULL;
    if (cudaGetDevice(&device) != cudaSuccess) return NULL;
    must_cuda(cudaGetDeviceProperties(&properties, device), "device");
    must_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    snprintf(name, size, "%s", properties.name);
    return stream;
}

void *allocate_gpu(size_t bytes)
{
    void *memory = NULL;
    must_cuda(cudaMalloc(&memory, bytes ? bytes : 1), "memory");
    must_cuda(cudaMemset(memory, 0, bytes), "memory");
    must_cuda(cudaDeviceSynchronize(), "memory"); /* other streams do not wait for the clearing */
    return memory;
}

void release_gpu(void *memory) { must_cuda(cudaFree(memory), "memory"); }

void copy_gpu(cudaStream_t stream, void *to, const void *from, size_t bytes)
{
    must_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy");
    wait_gpu(stream);
}

void wait_gpu(cudaStream_t stream) { must_cuda(cudaStreamSynchronize(stream), "stream"); }

/* Relaxed: a kernel's code may be loaded at its first launch, in the middle of the capture. */
void capture_gpu(cudaStream_t stream)
{
    must_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
}

void *captured_gpu(cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    must_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    must_cuda(cudaGraphInstantiateWithFlags(&ready, graph, 0), "graph");
    must_cuda(cudaGraphDestroy(graph), "graph");
    return ready;
}

void replay_gpu(void *graph, cudaStream_t stream) { must_cuda(cudaGraphLaunch((cudaGraphExec_t)graph, stream), "graph"); }

void release_graph_gpu(void *graph) { must_cuda(cudaGraphExecDestroy((cudaGraphExec_t)graph), "graph"); }

/* ---- A step's own data ---- */

/* One thread a byte of a window. */
static __global__ void draw_windows_kernel(gpu_windows w, const step_clock *clock)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / w.context, at = i % w.context;
    if (t >= w.tokens) return;
    const int64_t number = (clock->step * w.micro_batches + w.micro_batch) * w.tokens + t;
    const int64_t position = window_position(w.random, number, w.context, w.train_end);
    w.bytes[i] = w.text[position - w.context + at];
    if (at == 0) w.targets[t] = w.text[position];
}

void draw_windows_gpu(cudaStream_t stream, const gpu_windows *windows, const step_clock *clock)
{
    draw_windows_kernel<<<blocks_for(windows->tokens * windows->context), THREADS, 0, stream>>>(*windows, clock);
    launched("draw_windows");
}

/* The sum of x over a block, in an order that never changes; every thread gets it. All threads must call. */
template <typename Real>
static __device__ Real block_sum(Real x)
{
    __shared__ Real part[WARPS];
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads(); /* the last sum is read */
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < WARPS; w++) x += part[w];
    return x;
}

static __global__ void __launch_bounds__(THREADS)
    add_loss_kernel(int64_t rows, double share, const double *row_loss, double *losses, const step_clock *clock)
{
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += THREADS) sum += row_loss[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0) losses[clock->step] += share * sum / (double)rows;
}

void add_loss_gpu(cudaStream_t stream, int64_t rows, double share, const double *row_loss, double *losses,
    const step_clock *clock)
{
    add_loss_kernel<<<1, THREADS, 0, stream>>>(rows, share, row_loss, losses, clock);
    launched("add_loss");
}

static __global__ void next_step_kernel(double peak, int64_t steps, step_clock *clock)
{
    next_step(peak, steps, clock);
}

void next_step_gpu(cudaStream_t stream, double peak, int64_t steps, step_clock *clock)
{
    next_step_kernel<<<1, 1, 0, stream>>>(peak, steps, clock);
    launched("next_step");
}

static __global__ void __launch_bounds__(THREADS) adam_kernel(
    int64_t count, const step_clock *clock, float *grad, float *mean, float *square, float *value, uint16_t *bf16)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    adam(clock->rate, &grad[i], &mean[i], &square[i], &value[i]);
    if (bf16) bf16[i] = bf16_of(value[i]);
}

void adam_gpu(cudaStream_t stream, int64_t count, const step_clock *clock, float *grad, float *mean, float *square,
    float *value, uint16_t *bf16)
{
    adam_kernel<<<blocks_for(count), THREADS, 0, stream>>>(count, clock, grad, mean, square, value, bf16);
    launched("adam");
}

/* ---- Stages, as in train_moe_math.h ---- */

static __device__ void put(tegroup_dtype operand, void *to, int64_t i, float x)
{
    if (operand == TEGROUP_DTYPE_BF16) ((uint16_t *)to)[i] = bf16_of(x);
    else ((float *)to)[i] = x;
}

/* One block a row. */
static __global__ void __launch_bounds__(THREADS) rms_norm_kernel(
    int64_t width, const float *x, const float *gain, dropout d, tegroup_dtype operand, void *y, float *inverse_rms)
{
    const float *in = x + blockIdx.x * width;
    float squares = 0;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) squares += in[i] * in[i];
    const float inverse = 1 / sqrtf(block_sum(squares) / (float)width + 1e-6f);
    if (threadIdx.x == 0) inverse_rms[blockIdx.x] = inverse;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const int64_t at = blockIdx.x * width + i;
        put(operand, y, at, in[i] * inverse * gain[i] * (float)kept(d, at));
    }
}

void rms_norm_gpu(cudaStream_t stream, int64_t rows, int64_t width, const float *x, const float *gain, dropout d,
    tegroup_dtype operand, void *y, float *inverse_rms)
{
    rms_norm_kernel<<<(unsigned)rows, THREADS, 0, stream>>>(width, x, gain, d, operand, y, inverse_rms);
    launched("rms_norm");
}

static __global__ void __launch_bounds__(THREADS) drop_kernel(int64_t count, dropout d, float *grad)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) grad[i] *= (float)kept(d, i);
}

void drop_gpu(cudaStream_t stream, int64_t count, dropout d, float *grad)
{
    if (d.rate == 0) return;
    drop_kernel<<<blocks_for(count), THREADS, 0, stream>>>(count, d, grad);
    launched("drop");
}

/* A block takes 32 columns; each of its warps every 32nd row. */
static __global__ void __launch_bounds__(MOST_THREADS) rms_norm_gain_kernel(
    int64_t rows, int64_t width, const float *x, const float *inverse_rms, const float *grad_y, float *grad_gain)
{
    __shared__ float part[MOST_WARPS][WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t i = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0;
    for (int64_t r = warp; r < rows && i < width; r += MOST_WARPS)
        sum += grad_y[r * width + i] * x[r * width + i] * inverse_rms[r];
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || i >= width) return;
    for (int w = 1; w < MOST_WARPS; w++) sum += part[w][lane];
    grad_gain[i] += sum;
}

void rms_norm_gain_gpu(cudaStream_t stream, int64_t rows, int64_t width, const float *x, const float *inverse_rms,
    const float *grad_y, float *grad_gain)
{
    rms_norm_gain_kernel<<<(unsigned)((width + WARP - 1) / WARP), MOST_THREADS, 0, stream>>>(
        rows, width, x, inverse_rms, grad_y, grad_gain);
    launched("rms_norm_gain");
}

/* One block a row. */
static __global__ void __launch_bounds__(THREADS) rms_norm_input_kernel(
    int64_t width, const float *x, const float *gain, const float *inverse_rms, const float *grad_y, float *grad_x)
{
    const int64_t row = blockIdx.x * width;
    const float s = inverse_rms[blockIdx.x];
    float along = 0;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) along += grad_y[row + i] * gain[i] * x[row + i];
    along = block_sum(along) * s * s * s / (float)width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) grad_x[row + i] += s * gain[i] * grad_y[row + i] - along * x[row + i];
}

void rms_norm_input_gpu(cudaStream_t stream, int64_t rows, int64_t width, const float *x, const float *gain,
    const float *inverse_rms, const float *grad_y, float *grad_x)
{
    rms_norm_input_kernel<<<(unsigned)rows, THREADS, 0, stream>>>(width, x, gain, inverse_rms, grad_y, grad_x);
    launched("rms_norm_input");
}

static __global__ void __launch_bounds__(THREADS) add_kernel(int64_t count, const float *x, float *sum)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) sum[i] += x[i];
}

void add_gpu(cudaStream_t stream, int64_t count, const float *x, float *sum)
{
    add_kernel<<<blocks_for(count), THREADS, 0, stream>>>(count, x, sum);
    launched("add");
}

void clear_gpu(cudaStream_t stream, int64_t count, float *x)
{
    must_cuda(cudaMemsetAsync(x, 0, (size_t)count * sizeof *x, stream), "clear");
}

static __global__ void __launch_bounds__(THREADS) narrow_kernel(int64_t count, const float *x, tegroup_dtype operand, void *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) put(operand, y, i, x[i]);
}

void narrow_gpu(cudaStream_t stream, int64_t count, const float *x, tegroup_dtype operand, void *y)
{
    narrow_kernel<<<blocks_for(count), THREADS, 0, stream>>>(count, x, operand, y);
    launched("narrow");
}

static __global__ void __launch_bounds__(THREADS) embed_kernel(
    int64_t count, int64_t width, const uint8_t *bytes, const float *table, dropout d, tegroup_dtype operand,
    void *embedded)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, byte = i / width;
    if (byte < count) put(operand, embedded, i, table[bytes[byte] * width + i % width] * (float)kept(d, byte));
}

void embed_gpu(cudaStream_t stream, int64_t count, int64_t width, const uint8_t *bytes, const float *table,
    dropout d, tegroup_dtype operand, void *embedded)
{
    embed_kernel<<<blocks_for(count * width), THREADS, 0, stream>>>(count, width, bytes, table, d, operand, embedded);
    launched("embed");
}

/* One block a byte value. Its warps look through a stretch each, 32 bytes at a glance, and add the rows that are its own. */
static __global__ void __launch_bounds__(MOST_THREADS) embed_backward_kernel(
    int64_t count, int64_t width, const uint8_t *bytes, const float *grad_embedded, dropout d, float *grad_table)
{
    __shared__ float part[MOST_WARPS][EMBED_MAX];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int64_t stretch = (count + MOST_THREADS - 1) / MOST_THREADS * WARP; /* a multiple of 32, and MOST_WARPS of them cover all */
    const int64_t end = (warp + 1) * stretch < count ? (warp + 1) * stretch : count;
    float sum[EMBED_MAX / WARP] = {0};
    for (int64_t from = warp * stretch; from < end; from += WARP) {
        unsigned mine = __ballot_sync(0xffffffffu, from + lane < end && bytes[from + lane] == blockIdx.x);
        for (; mine; mine &= mine - 1) {
            const int64_t i = from + __ffs((int)mine) - 1;
            const float factor = (float)kept(d, i), *row = grad_embedded + i * width;
            for (int j = 0; j < EMBED_MAX / WARP; j++)
                if (j * WARP + lane < width) sum[j] += row[j * WARP + lane] * factor;
        }
    }
    for (int j = 0; j < EMBED_MAX / WARP; j++) part[warp][j * WARP + lane] = sum[j];
    __syncthreads();
    for (int64_t i = threadIdx.x; i < width; i += MOST_THREADS) {
        float all = 0;
        for (int w = 0; w < MOST_WARPS; w++) all += part[w][i];
        grad_table[blockIdx.x * width + i] += all;
    }
}

void embed_backward_gpu(cudaStream_t stream, int64_t count, int64_t width, const uint8_t *bytes, const float *grad_embedded,
    dropout d, float *grad_table)
{
    if (width > EMBED_MAX) {
        fprintf(stderr, "train_moe: a byte's embedding is at most %d wide on a GPU\n", EMBED_MAX);
        exit(1);
    }
    embed_backward_kernel<<<256, MOST_THREADS, 0, stream>>>(count, width, bytes, grad_embedded, d, grad_table);
    launched("embed_backward");
}

/* The largest x over a block. All threads must call. */
static __device__ float block_max(float x)
{
    __shared__ float part[WARPS];
    for (int step = WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    __syncthreads(); /* the last one is read */
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) x = fmaxf(x, part[w]);
    return x;
}

/* One block a row, one thread a class. */
static __global__ void __launch_bounds__(THREADS) cross_entropy_kernel(int64_t classes, const float *logits,
    const int32_t *target, float scale, double *row_loss, tegroup_dtype operand, void *grad_logits)
{
    const int64_t c = threadIdx.x, at = blockIdx.x * classes + c;
    const int32_t wanted = target[blockIdx.x];
    const float logit = c < classes ? logits[at] : -INFINITY, largest = block_max(logit);
    const float odds = expf(logit - largest), sum = block_sum(odds);
    if (c == 0 && wanted < 0) row_loss[blockIdx.x] = 0;
    if (c == wanted) row_loss[blockIdx.x] = (double)(logf(sum) - (logit - largest));
    if (grad_logits && c < classes)
        put(operand, grad_logits, at, wanted < 0 ? 0 : odds * (scale / sum) - (c == wanted ? scale : 0));
}

void cross_entropy_gpu(cudaStream_t stream, int64_t rows, int64_t classes, const float *logits, const int32_t *target,
    float scale, double *row_loss, tegroup_dtype operand, void *grad_logits)
{
    if (classes > CLASSES_MAX) {
        fprintf(stderr, "train_moe: at most %d classes on a GPU\n", CLASSES_MAX);
        exit(1);
    }
    cross_entropy_kernel<<<(unsigned)rows, THREADS, 0, stream>>>(classes, logits, target, scale, row_loss, operand, grad_logits);
    launched("cross_entropy");
}
