/* nvcc -std=c++17 -O3 -DTEGROUP_NO_PORTABLE -DTEGROUP_NO_CUBLASLT -gencode arch=compute_90a,code=sm_90a -I. tests/bench/bench_mlp.cu -o bench_mlp */

/* A grouped MLP with the activation in fc1's epilogue beside the same with a kernel of its own: the layers of public models
 * (shapes.json has their products), BF16, SwiGLU, even groups and uneven ones, row probabilities. Inference keeps
 * neither preactivation nor activated; training keeps both. Contestants take turns in random order, 256 MB are written before each, medians
 * of ROUNDS; results must be equal bit for bit. Operands are random normal numbers. */
#include <math.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <algorithm>
#include <vector>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (int)(call);                                                                                       \
        if (code_ != 0) {                                                                                              \
            tegroup_error_text(&error, text, sizeof text);                                                             \
            fprintf(stderr, "%s:%d: code %d %s\n", __FILE__, __LINE__, code_, text);                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { ROUNDS = 15, WAYS = 4 };
static tegroup_error error;
static char text[2048];

static const struct layer { const char *name; int groups; int64_t rows, d, h; } layers[] = {
    {"mixtral", 8, 16384, 4096, 14336}, {"dsv3 ep32", 8, 32768, 7168, 2048},  {"dsv3 ep8", 32, 32768, 7168, 2048},
    {"qwen3-30b", 128, 65536, 2048, 768}, {"gpt-oss", 32, 16384, 2880, 2880}, {"kimi-k2 ep8", 48, 32768, 7168, 2048}};

/* About normal: the sum of four uniform numbers, in BF16. */
static __global__ void fill_normal(uint16_t *x, size_t count, unsigned seed, float scale) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u + (unsigned)(i >> 32) * 40503u + seed;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
        const float sum = (float)(h & 255) + (float)(h >> 8 & 255) + (float)(h >> 16 & 255) + (float)(h >> 24) - 510.0f;
        x[i] = (uint16_t)(__float_as_uint(sum * scale / 148.0f) >> 16);
    }
}
static __global__ void differ(const uint16_t *a, const uint16_t *b, size_t count, unsigned long long *found) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) atomicAdd(found, 1ull);
}

static std::vector<void *> held;
static void *device(int64_t bytes) {
    void *p;
    MUST(cudaMalloc(&p, (size_t)bytes));
    held.push_back(p);
    return p;
}
static void *normal(int64_t count, float scale) {
    static unsigned seed;
    void *p = device(count * 2);
    fill_normal<<<2048, 256>>>((uint16_t *)p, (size_t)count, ++seed * 977u, scale);
    return p;
}

int main(int arguments, char **) {
    const int interleaved = arguments > 1; /* any argument: gate, up, gate, up ... */
    char *flush;
    unsigned long long *found, differences;
    cudaEvent_t begin, end;
    MUST(cudaMalloc((void **)&flush, (size_t)256 << 20));
    MUST(cudaMalloc((void **)&found, sizeof *found));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    double mean[2] = {0, 0};
    int count = 0;
    printf("%-12s %-8s %10s %10s %7s %10s %10s %7s\n", "layer", "split", "infer us", "fused", "ratio", "train us", "fused", "ratio");
    for (const layer &l : layers)
        for (int uneven = 0; uneven < 2; uneven++) {
            std::vector<int64_t> sizes((size_t)l.groups, l.rows / l.groups);
            sizes[0] += l.rows % l.groups;
            if (uneven) { /* weights 1 / rank^0.8 in no order, the rest to group 0 */
                double sum = 0;
                int64_t left = l.rows;
                for (int g = 0; g < l.groups; g++) sum += pow(1 + g * 7 % l.groups, -0.8);
                for (int g = 0; g < l.groups; g++) left -= sizes[(size_t)g] = (int64_t)((double)l.rows * pow(1 + g * 7 % l.groups, -0.8) / sum);
                sizes[0] += left;
            }
            tegroup_mlp_desc base;
            memset(&base, 0, sizeof base);
            base.struct_size = sizeof base;
            base.space = TEGROUP_SPACE_DEVICE;
            tegroup_shape rows, each;
            memset(&rows, 0, sizeof rows);
            rows.groups = l.groups;
            rows.rows = l.rows;
            each = rows;
            rows.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
            rows.row_sizes.dtype = TEGROUP_DTYPE_I64;
            rows.row_sizes.space = TEGROUP_SPACE_DEVICE;
            rows.row_sizes.data = device((int64_t)sizeof(int64_t) * l.groups);
            MUST(cudaMemcpy((void *)rows.row_sizes.data, sizes.data(), sizeof(int64_t) * (size_t)l.groups, cudaMemcpyHostToDevice));
            tegroup_layout layout;
            MUST(tegroup_snapshot_layout(&rows, &layout, &error));
            tegroup_prepare_desc prepare;
            memset(&prepare, 0, sizeof prepare);
            prepare.struct_size = sizeof prepare;
            prepare.shape = rows;
            prepare.space = TEGROUP_SPACE_DEVICE;
            rows.snapshot = prepare.snapshot = device((int64_t)layout.total_bytes);
            prepare.snapshot_bytes = layout.total_bytes;
            MUST(tegroup_prepare(&prepare, 0, &error));
            auto tensor = [&](tegroup_shape shape, int64_t r, int64_t c, void *data) {
                tegroup_tensor t;
                memset(&t, 0, sizeof t);
                t.shape = shape;
                t.shape.rows = r;
                t.shape.cols = c;
                t.dtype = TEGROUP_DTYPE_BF16;
                t.data = data;
                return t;
            };
            base.activation = TEGROUP_ACTIVATION_SWIGLU;
            base.interleaved = interleaved;
            base.fc1.weight = tensor(each, 2 * l.h, l.d, normal(l.groups * 2 * l.h * l.d, 1 / sqrtf((float)l.d)));
            base.fc2.weight = tensor(each, l.d, l.h, normal(l.groups * l.h * l.d, 1 / sqrtf((float)l.h)));
            base.input = tensor(rows, l.rows, l.d, normal(l.rows * l.d, 1));
            std::vector<float> scales((size_t)l.rows);
            for (int64_t i = 0; i < l.rows; i++) scales[(size_t)i] = (float)(1 + i % 97) / 100;
            base.row_scale = device(4 * l.rows);
            MUST(cudaMemcpy((void *)base.row_scale, scales.data(), 4 * (size_t)l.rows, cudaMemcpyHostToDevice));
            base.row_scale_dtype = TEGROUP_DTYPE_F32;
            base.expected_rows = l.rows;
            base.expected_rows_max = *std::max_element(sizes.begin(), sizes.end());
            tegroup_mlp_desc mlp[WAYS];
            tegroup_mlp_plan plan[WAYS];
            void *workspace = nullptr;
            size_t most = 0;
            for (int way = 0; way < WAYS; way++) { /* training, fused */
                const int training = way / 2, fused = way % 2;
                mlp[way] = base;
                mlp[way].fusion = fused ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER;
                mlp[way].out = tensor(rows, l.rows, l.d, device(l.rows * l.d * 2));
                if (training) {
                    mlp[way].preactivation = tensor(rows, l.rows, 2 * l.h, device(l.rows * l.h * 4));
                    mlp[way].activated = tensor(rows, l.rows, l.h, device(l.rows * l.h * 2));
                }
                MUST(tegroup_mlp_plan_make(&mlp[way], nullptr, &plan[way], &error));
                most = std::max(most, (size_t)plan[way].workspace.total_bytes);
            }
            workspace = device((int64_t)most + 1);
            std::vector<float> times[WAYS];
            for (int round = -3; round < ROUNDS; round++) {
                int order[WAYS] = {0, 1, 2, 3};
                for (int i = WAYS - 1; i > 0; i--) std::swap(order[i], order[rand() % (i + 1)]);
                for (int way : order) {
                    float ms;
                    mlp[way].workspace = workspace;
                    mlp[way].workspace_bytes = most;
                    MUST(cudaMemsetAsync(flush, round, (size_t)256 << 20));
                    MUST(cudaEventRecord(begin));
                    MUST(tegroup_mlp_forward(&plan[way], &mlp[way], 0, &error));
                    MUST(cudaEventRecord(end));
                    MUST(cudaEventSynchronize(end));
                    MUST(cudaEventElapsedTime(&ms, begin, end));
                    if (round >= 0) times[way].push_back(ms * 1e3f);
                }
            }
            MUST(cudaMemset(found, 0, sizeof *found));
            for (int way = 1; way < WAYS; way++)
                differ<<<1024, 256>>>((const uint16_t *)mlp[0].out.data, (const uint16_t *)mlp[way].out.data, (size_t)(l.rows * l.d), found);
            differ<<<1024, 256>>>((const uint16_t *)mlp[2].preactivation.data, (const uint16_t *)mlp[3].preactivation.data, (size_t)(l.rows * l.h * 2), found);
            differ<<<1024, 256>>>((const uint16_t *)mlp[2].activated.data, (const uint16_t *)mlp[3].activated.data, (size_t)(l.rows * l.h), found);
            MUST(cudaMemcpy(&differences, found, sizeof differences, cudaMemcpyDeviceToHost));
            for (auto &t : times) std::sort(t.begin(), t.end());
            auto median = [&](int way) { return (double)times[way][ROUNDS / 2]; };
            printf("%-12s %-8s %10.1f %10.1f %7.3f %10.1f %10.1f %7.3f %s\n", l.name, uneven ? "uneven" : "even", median(0), median(1), median(0) / median(1), median(2),
                   median(3), median(2) / median(3), differences ? "BITS DIFFER" : "");
            fflush(stdout);
            mean[0] += log(median(0) / median(1)), mean[1] += log(median(2) / median(3)), count++;
            for (void *p : held) MUST(cudaFree(p));
            held.clear();
            if (differences) return 1;
        }
    printf("geometric means: inference %.3f, training forward %.3f\n", exp(mean[0] / count), exp(mean[1] / count));
    return 0;
}
