/* Operands of the benchmarks in CUDA, and what they do where a call fails. Include after tegroup.h. */
#ifndef TEGROUP_BENCH_H
#define TEGROUP_BENCH_H

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static tegroup_error error;
static char text[2048];

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (int)(call);                                                                                       \
        if (code_ != 0) {                                                                                              \
            tegroup_error_text(&error, text, sizeof text);                                                             \
            fprintf(stderr, "%s:%d: code %d %s\n", __FILE__, __LINE__, code_, text);                                   \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* About normal: the sum of four uniform numbers, in BF16. */
static __global__ void fill_normal(uint16_t *x, size_t count, unsigned seed, float scale) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u + (unsigned)(i >> 32) * 40503u + seed;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13, h *= 3266489917u, h ^= h >> 16;
        const float sum = (float)(h & 255) + (float)(h >> 8 & 255) + (float)(h >> 16 & 255) + (float)(h >> 24) - 510.0f;
        x[i] = (uint16_t)(__float_as_uint(sum * scale / 148.0f) >> 16);
    }
}

static std::vector<void *> held;
static void *device(int64_t bytes) {
    void *p;
    MUST(cudaMalloc(&p, (size_t)std::max<int64_t>(bytes, 1)));
    held.push_back(p);
    return p;
}
static void *normal(int64_t count, float scale) {
    static unsigned seed;
    void *p = device(count * 2);
    fill_normal<<<2048, 256>>>((uint16_t *)p, (size_t)count, ++seed * 977u, scale);
    return p;
}

#endif
