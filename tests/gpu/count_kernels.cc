/* Which kernels a program holds and which of them it launched. Linked in with the linker's --wrap for each function below;
 * with TEGROUP_KERNEL_LOG=FILE set, the program appends a line "held NAME" or "launched NAME" a kernel to FILE when it ends. */
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {
struct Kernel {
    std::string name;
    bool launched;
};
struct Kernels {
    std::mutex mutex;
    std::map<const void *, Kernel> by_function; /* the host's address of a kernel */
    std::map<const void *, const void *> function_of; /* a handle of it */
    ~Kernels() {
        const char *path = getenv("TEGROUP_KERNEL_LOG");
        FILE *file = path != nullptr ? fopen(path, "a") : nullptr;
        if (file == nullptr) return;
        for (const auto &k : by_function) fprintf(file, "%s %s\n", k.second.launched ? "launched" : "held", k.second.name.c_str());
        fclose(file);
    }
    void launch(const void *function) {
        std::lock_guard<std::mutex> lock(mutex);
        const auto handle = function_of.find(function);
        const auto k = by_function.find(handle != function_of.end() ? handle->second : function);
        if (k != by_function.end()) k->second.launched = true;
    }
};
Kernels &kernels() { /* made before the first kernel is registered, whatever the order of the files */
    static Kernels all;
    return all;
}
} // namespace

extern "C" {
void __real___cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *, int *);
void __wrap___cudaRegisterFunction(void **image, const char *function, char *device, const char *name, int limit, uint3 *tid, uint3 *bid,
                                   dim3 *block, dim3 *grid, int *warp) {
    kernels().by_function[function] = Kernel{name, false};
    __real___cudaRegisterFunction(image, function, device, name, limit, tid, bid, block, grid, warp);
}

cudaError_t __real___cudaGetKernel(cudaKernel_t *, const void *);
cudaError_t __wrap___cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    const cudaError_t code = __real___cudaGetKernel(kernel, function);
    if (code == cudaSuccess) {
        std::lock_guard<std::mutex> lock(kernels().mutex);
        kernels().function_of[*kernel] = function;
    }
    return code;
}

#define LAUNCH(symbol, type)                                                                                           \
    cudaError_t __real_##symbol(type, dim3, dim3, void **, size_t, cudaStream_t);                                      \
    cudaError_t __wrap_##symbol(type kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) { \
        const cudaError_t code = __real_##symbol(kernel, grid, block, arguments, shared, stream);                      \
        if (code == cudaSuccess) kernels().launch(kernel);                                                             \
        return code;                                                                                                   \
    }
LAUNCH(cudaLaunchKernel, const void *)
LAUNCH(__cudaLaunchKernel, cudaKernel_t)
LAUNCH(cudaLaunchCooperativeKernel, const void *)

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
    const cudaError_t code = __real_cudaLaunchKernelExC(config, kernel, arguments);
    if (code == cudaSuccess) kernels().launch(kernel);
    return code;
}
}
