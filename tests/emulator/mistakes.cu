/* Kernels with a mistake each, which the emulator must find: `mistakes list` prints "NAME, what it must say"; `mistakes NAME` runs one.
 * Those that no machine can be asked to refuse give a wrong sum, and the program says so itself. */
#include <cstdio>
#include <cstring>

__global__ void behind_its_buffer(float *x, int n) { x[threadIdx.x] = (float)n; }
__global__ void in_host_memory(const float *host, float *x) { x[threadIdx.x] = host[threadIdx.x]; }
__global__ void between_sixteen_bytes(float *x) { *(float4 *)(x + 1) = make_float4(1, 2, 3, 4); }
__global__ void behind_a_shared_array(float *x) {
    __shared__ float some[32], others[32];
    some[threadIdx.x + (int)x[0]] = 1;
    others[threadIdx.x] = 2;
    __syncthreads();
    x[threadIdx.x] = some[31 - threadIdx.x] + others[threadIdx.x];
}
__global__ void a_barrier_that_few_reach(float *x) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
    x[threadIdx.x] = 1;
}
__global__ void an_arrival_too_many(float *x) {
    __shared__ unsigned long long barrier;
    const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
        asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(at) : "memory");
        for (int i = 0; i < 2; i++) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
    }
    x[threadIdx.x] = 1;
}
__global__ void lanes_that_never_come(float *x) {
    float y = 1;
    if (threadIdx.x < 16) y = __shfl_sync(0xffffffffu, y, 0);
    else asm volatile("barrier.sync 1, 64;" ::: "memory");
    x[threadIdx.x] = y;
}
__global__ void a_trap(float *x) {
    if (threadIdx.x == 31) __trap();
    x[threadIdx.x] = 1;
}
/* These two read what is not there yet. */
__global__ void a_copy_not_waited_for(float *x) {
    __shared__ __align__(16) float some[32];
    some[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;" ::"r"((unsigned)__cvta_generic_to_shared(some + 4 * threadIdx.x)),
                     "l"(x + 4 * threadIdx.x) : "memory");
    __syncthreads();
    x[32 + threadIdx.x] = some[threadIdx.x];
}
__global__ void a_barrier_left_out(float *x) {
    __shared__ float some[256];
    some[threadIdx.x] = x[threadIdx.x];
    x[256 + threadIdx.x] = some[255 - threadIdx.x];
}

int main(int count, char **words) {
    static const char *names[][2] = {
        {"behind_its_buffer", "0 bytes behind the end of 124 bytes"}, {"in_host_memory", "a load of 4 bytes"}, {"between_sixteen_bytes", "no multiple of 16"},
        {"behind_a_shared_array", "in none of its variables"}, {"a_barrier_that_few_reach", "no thread can go on"}, {"an_arrival_too_many", "more arrivals than"},
        {"lanes_that_never_come", "no thread can go on"}, {"a_trap", "a trap"}, {"a_copy_not_waited_for", "a wrong sum"}, {"a_barrier_left_out", "a wrong sum"}};
    if (count < 2) return 2;
    if (!strcmp(words[1], "list")) {
        for (const auto &n : names) printf("%s,%s\n", n[0], n[1]);
        return 0;
    }
    float *x, host[512], sum = 0, wanted = 0;
    const auto is = [&](const char *name) { return !strcmp(words[1], name); };
    for (int i = 0; i < 512; i++) host[i] = (float)(i % 256 + 1);
    cudaMalloc(&x, is("behind_its_buffer") ? 31 * 4 : sizeof host);
    cudaMemcpy(x, host, is("behind_its_buffer") ? 31 * 4 : sizeof host, cudaMemcpyHostToDevice);
    if (is("behind_its_buffer")) behind_its_buffer<<<1, 32>>>(x, 1);
    else if (is("in_host_memory")) in_host_memory<<<1, 32>>>(host, x);
    else if (is("between_sixteen_bytes")) between_sixteen_bytes<<<1, 1>>>(x);
    else if (is("behind_a_shared_array")) behind_a_shared_array<<<1, 32>>>(x);
    else if (is("a_barrier_that_few_reach")) a_barrier_that_few_reach<<<1, 64>>>(x);
    else if (is("an_arrival_too_many")) an_arrival_too_many<<<1, 32>>>(x);
    else if (is("lanes_that_never_come")) lanes_that_never_come<<<1, 32>>>(x);
    else if (is("a_trap")) a_trap<<<1, 32>>>(x);
    else if (is("a_copy_not_waited_for")) a_copy_not_waited_for<<<1, 32>>>(x);
    else if (is("a_barrier_left_out")) a_barrier_left_out<<<1, 256>>>(x);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    const int first = is("a_barrier_left_out") ? 256 : 32;
    for (int i = 0; i < first; i++) sum += host[first + i], wanted += (float)(i + 1);
    if (sum != wanted) fprintf(stderr, "a wrong sum\n");
    return sum != wanted;
}
