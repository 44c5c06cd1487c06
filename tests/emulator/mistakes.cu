/* Kernels with a mistake each, which the emulator must find: `mistakes list` prints "NAME,what it must say"; `mistakes NAME` runs one.
 * Those that no machine can be asked to refuse give a wrong sum with some seed, and the program says so itself, as it says of their
 * twins without the mistake that the sum is right. */
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
/* These read what is not there yet, unless they are told to wait. */
template <bool WAITS> __global__ void copy_of(float *x) {
    __shared__ __align__(16) float some[32];
    some[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;" ::"r"((unsigned)__cvta_generic_to_shared(some + 4 * threadIdx.x)),
                     "l"(x + 4 * threadIdx.x) : "memory");
    if (WAITS) asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    x[32 + threadIdx.x] = some[threadIdx.x];
}
template <bool WAITS> __global__ void turned_by_a_block(float *x) {
    __shared__ float some[256];
    some[threadIdx.x] = x[threadIdx.x];
    if (WAITS) __syncthreads();
    x[256 + threadIdx.x] = some[255 - threadIdx.x];
}
template <bool WAITS> __global__ void turned_by_a_warp(float *x) {
    __shared__ float some[32];
    some[threadIdx.x] = x[threadIdx.x];
    if (WAITS) __syncwarp();
    x[32 + threadIdx.x] = some[31 - threadIdx.x];
}
__global__ void a_shuffle_with_others_masks(float *x) { x[threadIdx.x] = __shfl_sync(0xffu, 1.0f, 0); }
__global__ void a_barrier_of_two_counts(float *x) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");
    else asm volatile("bar.sync 1, 96;" ::: "memory");
    x[threadIdx.x] = 1;
}
/* The second block of a cluster tells the first that it may go on. It must not do so when that has ended. */
template <bool WAITS> __global__ void told_by_another_block(float *x) {
    __shared__ unsigned long long barrier;
    const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0 && blockIdx.x == 1)
        asm volatile("{.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, 0;\n\tmbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(at) : "memory");
    if (WAITS && blockIdx.x == 0)
        asm volatile("{.reg .pred over;\n\tagain: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], 0;\n\t@!over bra again;}" ::"r"(at) : "memory");
    if (blockIdx.x == 0) x[32 + threadIdx.x] = x[threadIdx.x];
}
static void launch_cluster(void (*kernel)(float *), float *x) {
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute two = {};
    two.id = cudaLaunchAttributeClusterDimension;
    two.val.clusterDim = {2, 1, 1};
    how.gridDim = 2, how.blockDim = 32, how.attrs = &two, how.numAttrs = 1;
    cudaLaunchKernelEx(&how, kernel, x);
}

int main(int count, char **words) {
    static const char *names[][2] = {
        {"behind_its_buffer", "0 bytes behind the end of 124 bytes"}, {"in_host_memory", "a load of 4 bytes"}, {"between_sixteen_bytes", "no multiple of 16"},
        {"behind_a_shared_array", "in none of its variables"}, {"a_barrier_that_few_reach", "no thread can go on"}, {"an_arrival_too_many", "more arrivals than"},
        {"lanes_that_never_come", "no thread can go on"}, {"a_trap", "a trap"}, {"a_shuffle_with_others_masks", "not in its own mask"}, {"a_barrier_of_two_counts", "of 64 and of 96 threads"},
        {"a_copy_not_waited_for", "a wrong sum"}, {"a_copy_waited_for", "the right sum"}, {"a_barrier_left_out", "a wrong sum"}, {"a_barrier_not_left_out", "the right sum"},
        {"a_warps_barrier_left_out", "a wrong sum"}, {"a_warps_barrier_not_left_out", "the right sum"},
        {"a_block_told_that_has_ended", "of a block that has ended"}, {"a_block_told_that_waits", "the right sum"}};
    if (count < 2) return 2;
    if (!strcmp(words[1], "list")) {
        for (const auto &n : names) printf("%s,%s\n", n[0], n[1]);
        return 0;
    }
    float *x, host[512], sum = 0, wanted = 0;
    int first = 32;
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
    else if (is("a_shuffle_with_others_masks")) a_shuffle_with_others_masks<<<1, 32>>>(x);
    else if (is("a_barrier_of_two_counts")) a_barrier_of_two_counts<<<1, 64>>>(x);
    else if (is("a_copy_not_waited_for")) copy_of<false><<<1, 32>>>(x);
    else if (is("a_copy_waited_for")) copy_of<true><<<1, 32>>>(x);
    else if (is("a_barrier_left_out")) turned_by_a_block<false><<<1, 256>>>(x), first = 256;
    else if (is("a_barrier_not_left_out")) turned_by_a_block<true><<<1, 256>>>(x), first = 256;
    else if (is("a_warps_barrier_left_out")) turned_by_a_warp<false><<<1, 32>>>(x);
    else if (is("a_warps_barrier_not_left_out")) turned_by_a_warp<true><<<1, 32>>>(x);
    else if (is("a_block_told_that_has_ended")) launch_cluster(told_by_another_block<false>, x);
    else if (is("a_block_told_that_waits")) launch_cluster(told_by_another_block<true>, x);
    else return 2;
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < first; i++) sum += host[first + i], wanted += (float)(i + 1);
    fprintf(stderr, sum == wanted ? "the right sum\n" : "a wrong sum\n"); /* NaN is wrong */
    return sum != wanted;
}
