/* The CUDA runtime of a computer without a GPU: a libcudart.so.13 whose device is the machine of machine.h. Work is
 * done at the call, in the order of the calls, so that streams are always idle; what is enqueued in a stream that is
 * being captured is kept for its graph instead. Symbols have the version of the library's name, as in the real one:
 * build.mk's --default-symver.
 * The environment may set
 *     EMULATOR_SMS     how many multiprocessors there are, 4 by itself
 *     EMULATOR_TOGETHER  how many of them a cooperative grid may have: fewer are what a green context gives
 *     EMULATOR_MEMORY  how many MiB of device memory, 4096
 *     EMULATOR_FILL    the byte that new memory is filled with, 255, so that floats are NaN and indices negative */
#include "machine.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#pragma GCC visibility push(default) /* what these declare is what programs see */
#include <cuda.h>
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

/* ---- What handles point to ---- */

namespace {

/* PTX of a program, loaded when a kernel or a variable of it is first asked for. */
struct image {
    const char *ptx;
    size_t bytes;
    int target; /* 90 is sm_90 and sm_90a */
    emulator::module *loaded;
};
struct binary { std::vector<image> images; };

/* A graph in the making, and the streams that are captured for it. */
struct capture {
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    cudaStream_t origin;
    std::vector<cudaStream_t> streams;
    std::unique_ptr<CUgraph_st> graph;
    bool spoilt;
};
typedef std::shared_ptr<capture> capture_pointer;

typedef std::set<size_t> places; /* of nodes in their graph's list */
typedef std::function<void()> work;

} // namespace

struct CUgraphNode_st {
    cudaGraphNodeType type;
    work run;
    places after;
};
struct CUgraph_st { std::vector<std::shared_ptr<CUgraphNode_st>> nodes; };
struct CUgraphExec_st { std::vector<std::shared_ptr<CUgraphNode_st>> nodes; };
struct CUkern_st {
    std::string name;
    binary *from;
    emulator::kernel *entry;
    size_t dynamic_limit; /* bytes of dynamic shared memory that the program has asked for */
};
struct CUstream_st {
    unsigned flags;
    capture_pointer capturing; /* empty: it is not captured */
    places last;               /* captured: what the next node comes after */
};
struct CUevent_st {
    unsigned flags;
    bool recorded;
    std::chrono::steady_clock::time_point at;
    capture_pointer captured; /* what the stream that it was recorded in was captured for */
    places last;
};

namespace {

/* ---- The device, and errors ---- */

enum {
    WARP = 32, BLOCK_THREADS = 1024, MULTIPROCESSOR_THREADS = 2048, MULTIPROCESSOR_BLOCKS = 32, REGISTERS = 65536,
    SHARED_PLAIN = 48 << 10, SHARED_ASKED = 227 << 10, SHARED_MULTIPROCESSOR = 228 << 10, SHARED_SYSTEM = 1 << 10, CLUSTER_BLOCKS = 8,
    L2_BYTES = 50 << 20
};

size_t setting(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text != nullptr && *text != 0 ? strtoull(text, nullptr, 0) : otherwise;
}
const int multiprocessors = (int)std::max<size_t>(1, setting("EMULATOR_SMS", 4));
const int multiprocessors_together = (int)std::max<size_t>(1, setting("EMULATOR_TOGETHER", (size_t)multiprocessors));
const size_t memory_bytes = setting("EMULATOR_MEMORY", 4096) << 20;
const int memory_fill = (int)setting("EMULATOR_FILL", 255);

struct allocation {
    size_t bytes;
    cudaMemoryType type;
    bool ours; /* neither a variable of a module nor memory that the program has registered */
};
struct symbol {
    binary *from;
    std::string name;
};
struct state {
    std::recursive_mutex mutex;       /* of all of this; host functions in streams may call */
    cudaError_t broken = cudaSuccess; /* the error that stays once a kernel has failed */
    size_t used = 0;                  /* bytes of device memory */
    std::map<uintptr_t, allocation> memory;
    std::map<const void *, CUkern_st *> kernels; /* by the host's function, and by handle */
    std::map<const void *, symbol> symbols;      /* by the host's variable */
    std::set<cudaStream_t> streams;
    std::set<cudaEvent_t> events;
    std::set<capture_pointer> captures; /* that have not ended */
    CUstream_st legacy{};
};
state &device = *new state; /* never freed: programs end in any order */

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal; /* of this thread's unsafe calls */
thread_local CUstream_st *own_stream = nullptr;

/* What goes wrong in a call is thrown. */
void must(bool holds, cudaError_t otherwise) {
    if (!holds) throw otherwise;
}
template <typename BODY> cudaError_t call(BODY body) {
    std::lock_guard<std::recursive_mutex> lock(device.mutex);
    try {
        must(device.broken == cudaSuccess, device.broken);
        body();
    } catch (cudaError_t error) {
        return last_error = error;
    }
    return cudaSuccess;
}

[[noreturn]] void refuse(const char *what) {
    static std::set<std::string> told;
    if (told.insert(what).second) fprintf(stderr, "emulator: %s is not supported\n", what);
    throw cudaErrorNotSupported;
}
[[noreturn]] void give_up(const char *why) {
    fprintf(stderr, "emulator: %s\n", why);
    exit(1);
}

#define NAMED_ERRORS(E)                                                                                                \
    E(cudaSuccess, "no error") E(cudaErrorInvalidValue, "invalid argument")                                            \
    E(cudaErrorMemoryAllocation, "out of memory") E(cudaErrorInvalidConfiguration, "invalid configuration argument")   \
    E(cudaErrorInvalidPitchValue, "invalid pitch argument") E(cudaErrorInvalidSymbol, "invalid device symbol")         \
    E(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                                            \
    E(cudaErrorInvalidDeviceFunction, "invalid device function")                                                       \
    E(cudaErrorNoDevice, "no CUDA-capable device is detected") E(cudaErrorInvalidDevice, "invalid device ordinal")     \
    E(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                       \
    E(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")                     \
    E(cudaErrorUnsupportedPtxVersion, "the provided PTX was compiled with an unsupported toolchain.")                  \
    E(cudaErrorIllegalState, "the operation cannot be performed in the present state")                                 \
    E(cudaErrorSymbolNotFound, "named symbol not found") E(cudaErrorNotReady, "device not ready")                      \
    E(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                             \
    E(cudaErrorMisalignedAddress, "misaligned address")                                                                \
    E(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                                        \
    E(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped")             \
    E(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")                   \
    E(cudaErrorLaunchFailure, "unspecified launch failure")                                                            \
    E(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch")                                     \
    E(cudaErrorNotPermitted, "operation not permitted") E(cudaErrorNotSupported, "operation not supported")            \
    E(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                           \
    E(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                    \
    E(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                  \
    E(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")                         \
    E(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                            \
    E(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                      \
    E(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream")  \
    E(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")               \
    E(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread")   \
    E(cudaErrorUnknown, "unknown error")

/* ---- Programs: what fat binaries hold ---- */

struct fat_wrapper {
    uint32_t magic, version; /* 1; or 2 where device code is linked, with a list of what it is linked from */
    const unsigned char *data, *const *linked;
};
struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};
struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t target, name[2];
    uint64_t flags;
};
enum : uint32_t { FAT_WRAPPER = 0x466243b1, FAT_HEADER = 0xba55ed50, FAT_PTX = 1, FAT_PACKED = 0x2000 | 0x8000 };

/* Takes the PTX of the newest target that sm_90 can run; that for sm_90a before that for sm_90. */
void add_image(binary *to, const unsigned char *at) {
    image best{};
    int best_rank = -1;
    fat_header header;
    fat_entry entry;
    memcpy(&header, at, sizeof header);
    if (header.magic != FAT_HEADER) give_up("the program's fat binary is of an unknown kind");
    const unsigned char *const end = at + header.header_bytes + header.bytes;
    for (at += header.header_bytes; at < end; at += entry.header_bytes + entry.bytes) {
        memcpy(&entry, at, sizeof entry);
        if (entry.kind != FAT_PTX || entry.target > 90) continue;
        if (entry.flags & FAT_PACKED) give_up("the program's PTX is compressed: build it with nvcc -no-compress");
        std::string_view text((const char *)at + entry.header_bytes, entry.bytes);
        text = text.substr(0, text.find('\0'));
        const std::string target = ".target sm_" + std::to_string(entry.target);
        const size_t found = text.find(target);
        if (found == text.npos) give_up("the program's PTX does not say what it is for");
        const bool exact = text[found + target.size()] == 'a'; /* code for nothing else */
        const int rank = 2 * (int)entry.target + exact;
        if (rank <= best_rank || (exact && entry.target != 90)) continue;
        best_rank = rank;
        best = {text.data(), text.size(), (int)entry.target, nullptr};
    }
    if (best_rank >= 0) to->images.push_back(best);
}

/* Finds a kernel or a variable and loads what holds it. Linked programs have images that nobody calls: one without the
 * name is not loaded. */
template <typename FIND> auto find_in(binary *from, const std::string &name, FIND find) {
    decltype(find(nullptr)) found = nullptr;
    for (image &i : from->images) {
        if (from->images.size() > 1 && std::string_view(i.ptx, i.bytes).find(name) == std::string_view::npos) continue;
        if (i.loaded == nullptr) i.loaded = emulator::load(i.ptx, i.bytes);
        if ((found = find(i.loaded)) != nullptr) break;
    }
    return found;
}

CUkern_st *kernel_of(const void *function) {
    const auto k = device.kernels.find(function);
    must(k != device.kernels.end(), cudaErrorInvalidDeviceFunction);
    CUkern_st *const kernel = k->second;
    if (kernel->from->images.empty()) {
        static bool told;
        if (!told) fprintf(stderr, "emulator: the program has no PTX that sm_90 can run\n");
        told = true;
        throw cudaErrorNoKernelImageForDevice;
    }
    if (kernel->entry == nullptr)
        kernel->entry = find_in(kernel->from, kernel->name,
                                [&](emulator::module *m) { return emulator::find(m, kernel->name.c_str()); });
    must(kernel->entry != nullptr, cudaErrorInvalidDeviceFunction);
    return kernel;
}

unsigned char *address_of(const void *variable, size_t *bytes) {
    const auto s = device.symbols.find(variable);
    must(s != device.symbols.end(), cudaErrorInvalidSymbol);
    void *const at = find_in(s->second.from, s->second.name, [&](emulator::module *m) {
        return emulator::variable(m, s->second.name.c_str(), bytes);
    });
    must(at != nullptr, cudaErrorInvalidSymbol);
    device.memory[(uintptr_t)at] = {*bytes, cudaMemoryTypeDevice, false};
    return (unsigned char *)at;
}

/* ---- Streams, and what is captured in them ---- */

/* Nothing may get in between what is captured: a call that would do so fails, and the capture with it. */
template <typename WHICH> void must_spoil_none(WHICH which, cudaError_t otherwise) {
    bool any = false;
    for (const capture_pointer &c : device.captures)
        if (!c->spoilt && which(c)) c->spoilt = any = true;
    must(!any, otherwise);
}
[[noreturn]] void spoil(const capture_pointer &c, cudaError_t error) {
    c->spoilt = true;
    throw error;
}

/* For calls that might wait for any stream, such as an allocation. */
void must_be_safe() {
    const auto forbids = [](const capture_pointer &c) {
        if (c->mode == cudaStreamCaptureModeRelaxed || capture_mode == cudaStreamCaptureModeRelaxed) return false;
        return c->thread == std::this_thread::get_id()
               || (c->mode == cudaStreamCaptureModeGlobal && capture_mode == cudaStreamCaptureModeGlobal);
    };
    must_spoil_none(forbids, cudaErrorStreamCaptureUnsupported);
}

/* The legacy stream waits for all streams but the non-blocking ones. */
bool legacy_waits_for(const capture_pointer &c) {
    const auto is_blocking = [](cudaStream_t s) { return !(s->flags & cudaStreamNonBlocking); };
    return !c->spoilt && std::any_of(c->streams.begin(), c->streams.end(), is_blocking);
}

bool is_legacy(cudaStream_t handle) { return handle == nullptr || handle == cudaStreamLegacy; }

/* The stream of a handle, which the caller is going to use. */
cudaStream_t stream_of(cudaStream_t handle) {
    if (is_legacy(handle)) {
        must_spoil_none(legacy_waits_for, cudaErrorStreamCaptureImplicit);
        return &device.legacy;
    }
    if (handle == cudaStreamPerThread) {
        if (own_stream == nullptr) own_stream = new CUstream_st{};
        return own_stream;
    }
    must(device.streams.count(handle) > 0, cudaErrorInvalidResourceHandle);
    return handle;
}
void must_know(cudaEvent_t event) { must(device.events.count(event) > 0, cudaErrorInvalidResourceHandle); }

/* Does the work, or keeps it if the stream is captured. */
void enqueue(cudaStream_t handle, cudaGraphNodeType type, const work &what) {
    const cudaStream_t stream = stream_of(handle);
    if (!stream->capturing) return what();
    must(!stream->capturing->spoilt, cudaErrorStreamCaptureInvalidated);
    auto &nodes = stream->capturing->graph->nodes;
    nodes.push_back(std::make_shared<CUgraphNode_st>(CUgraphNode_st{type, what, stream->last}));
    stream->last = {nodes.size() - 1};
}

/* Until all work is done, which it is. */
void wait_for(cudaStream_t handle) {
    const cudaStream_t stream = stream_of(handle);
    if (stream->capturing) spoil(stream->capturing, cudaErrorStreamCaptureUnsupported);
    must_be_safe();
}
void wait_for_event(cudaEvent_t event) {
    must_know(event);
    if (event->captured) spoil(event->captured, cudaErrorCapturedEvent);
    must_be_safe();
}

void make_stream(cudaStream_t *to, unsigned flags) {
    must(to != nullptr && flags <= cudaStreamNonBlocking, cudaErrorInvalidValue);
    device.streams.insert(*to = new CUstream_st{flags, {}, {}});
}
void end(const capture_pointer &c) {
    for (cudaStream_t s : c->streams) s->capturing.reset(), s->last.clear();
    device.captures.erase(c);
}
void destroy_stream(cudaStream_t stream) {
    must(device.streams.erase(stream) > 0, cudaErrorInvalidResourceHandle);
    if (const capture_pointer c = stream->capturing) {
        c->spoilt = true;
        if (c->origin == stream) end(c);
        c->streams.erase(std::find(c->streams.begin(), c->streams.end(), stream));
    }
    delete stream;
}
void make_event(cudaEvent_t *to, unsigned flags) {
    must(to != nullptr, cudaErrorInvalidValue);
    device.events.insert(*to = new CUevent_st{flags, false, {}, {}, {}});
}
void destroy_event(cudaEvent_t event) {
    must(device.events.erase(event) > 0, cudaErrorInvalidResourceHandle);
    delete event;
}

void record(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
    const cudaStream_t stream = stream_of(handle);
    must_know(event);
    if (flags != 0) refuse("an external event");
    must(!stream->capturing || !stream->capturing->spoilt, cudaErrorStreamCaptureInvalidated);
    event->captured = stream->capturing;
    event->last = stream->last;
    event->recorded = true;
    event->at = std::chrono::steady_clock::now();
}

/* An event of a captured stream pulls the stream that waits for it into the capture. */
void wait_in(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    const cudaStream_t stream = stream_of(handle);
    must_know(event);
    if (flags != 0) refuse("an external event");
    const capture_pointer into = event->captured, already = stream->capturing;
    must(!into || device.captures.count(into) > 0, cudaErrorCapturedEvent);
    for (const capture_pointer &c : {into, already}) must(!c || !c->spoilt, cudaErrorStreamCaptureInvalidated);
    if (!into && already && event->recorded) spoil(already, cudaErrorStreamCaptureIsolation);
    if (!into) return;
    if (stream == &device.legacy) spoil(into, cudaErrorStreamCaptureImplicit);
    if (already && already != into) {
        already->spoilt = true;
        spoil(into, cudaErrorStreamCaptureMerge);
    }
    if (!already) into->streams.push_back(stream);
    stream->capturing = into;
    stream->last.insert(event->last.begin(), event->last.end());
}

void measure(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    for (cudaEvent_t e : {begin, end}) {
        must_know(e);
        must(e->recorded && !(e->flags & cudaEventDisableTiming), cudaErrorInvalidResourceHandle);
        must(!e->captured, cudaErrorCapturedEvent);
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->at - begin->at).count();
}

/* ---- Graphs ---- */

void begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    must(!is_legacy(handle), cudaErrorStreamCaptureUnsupported);
    const cudaStream_t stream = stream_of(handle);
    must(!stream->capturing, cudaErrorIllegalState);
    stream->capturing = std::make_shared<capture>(
        capture{mode, std::this_thread::get_id(), stream, {stream}, std::make_unique<CUgraph_st>(), false});
    device.captures.insert(stream->capturing);
}

/* Whether all that was captured comes before what the first stream would do next. */
bool is_joined(const CUgraph_st &graph, places reached) {
    for (size_t node = graph.nodes.size(); node-- > 0;) {
        if (reached.count(node) == 0) return false; /* only later nodes come after it */
        reached.insert(graph.nodes[node]->after.begin(), graph.nodes[node]->after.end());
    }
    return true;
}

void end_capture(cudaStream_t handle, cudaGraph_t *graph) {
    const cudaStream_t stream = stream_of(handle);
    const capture_pointer ended = stream->capturing;
    must(graph != nullptr, cudaErrorInvalidValue);
    *graph = nullptr;
    must((bool)ended, cudaErrorIllegalState);
    must(ended->origin == stream, cudaErrorStreamCaptureUnmatched);
    must(ended->mode == cudaStreamCaptureModeRelaxed || ended->thread == std::this_thread::get_id(),
         cudaErrorStreamCaptureWrongThread);
    const places last = stream->last;
    end(ended);
    must(!ended->spoilt, cudaErrorStreamCaptureInvalidated);
    must(is_joined(*ended->graph, last), cudaErrorStreamCaptureUnjoined);
    *graph = ended->graph.release();
}

/* The question alone spoils nothing. */
void tell_capture(cudaStream_t handle, cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    if (is_legacy(handle))
        return must(std::none_of(device.captures.begin(), device.captures.end(), legacy_waits_for),
                    cudaErrorStreamCaptureImplicit);
    if (const capture_pointer &c = stream_of(handle)->capturing)
        *status = c->spoilt ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

void list_nodes(cudaGraph_t graph, cudaGraphNode_t *to, size_t *count) {
    must(graph != nullptr && count != nullptr, cudaErrorInvalidValue);
    const size_t all = graph->nodes.size();
    for (size_t i = 0; to != nullptr && i < *count; i++) to[i] = i < all ? graph->nodes[i].get() : nullptr;
    *count = to != nullptr ? std::min(*count, all) : all;
}
void instantiate(cudaGraphExec_t *to, cudaGraph_t graph) {
    must(to != nullptr && graph != nullptr, cudaErrorInvalidValue);
    *to = new CUgraphExec_st{graph->nodes};
}
void launch_graph(cudaGraphExec_t exec, cudaStream_t stream) {
    must(exec != nullptr, cudaErrorInvalidValue);
    const auto nodes = exec->nodes; /* a copy: within another graph they outlive exec */
    enqueue(stream, cudaGraphNodeTypeGraph, [nodes] {
        for (const auto &node : nodes) node->run();
    });
}

/* ---- Memory ---- */

/* The allocation that an address lies in; the end of the list where there is none. */
std::map<uintptr_t, allocation>::iterator memory_at(const void *address) {
    auto found = device.memory.upper_bound((uintptr_t)address);
    if (found == device.memory.begin()) return device.memory.end();
    --found;
    return (uintptr_t)address < found->first + found->second.bytes ? found : device.memory.end();
}

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* Kernels may touch the bytes that were asked for and none behind them. */
void allocate(void **at, size_t bytes, cudaMemoryType type) {
    const size_t counted = type == cudaMemoryTypeHost ? 0 : rounded(bytes);
    must_be_safe();
    must(at != nullptr && (bytes > 0 || type != cudaMemoryTypeManaged), cudaErrorInvalidValue);
    *at = nullptr;
    if (bytes == 0) return;
    must(bytes <= memory_bytes && counted <= memory_bytes - device.used, cudaErrorMemoryAllocation);
    void *const memory = aligned_alloc(256, rounded(bytes));
    must(memory != nullptr, cudaErrorMemoryAllocation);
    memset(memory, memory_fill, rounded(bytes));
    device.used += counted;
    device.memory[(uintptr_t)memory] = {bytes, type, true};
    emulator::add_memory(memory, bytes);
    *at = memory;
}

void release(void *at, bool of_host) {
    must_be_safe();
    if (at == nullptr) return;
    const auto found = device.memory.find((uintptr_t)at);
    must(found != device.memory.end() && found->second.ours, cudaErrorInvalidValue);
    must((found->second.type == cudaMemoryTypeHost) == of_host, cudaErrorInvalidValue);
    if (!of_host) device.used -= rounded(found->second.bytes);
    device.memory.erase(found);
    emulator::remove_memory(at);
    free(at);
}

/* Memory of the program that kernels may touch, too. */
void register_memory(void *at, size_t bytes) {
    must(at != nullptr && bytes > 0, cudaErrorInvalidValue);
    must(memory_at(at) == device.memory.end(), cudaErrorHostMemoryAlreadyRegistered);
    device.memory[(uintptr_t)at] = {bytes, cudaMemoryTypeHost, false};
    emulator::add_memory(at, bytes);
}
void unregister_memory(void *at) {
    const auto found = device.memory.find((uintptr_t)at);
    must(found != device.memory.end() && !found->second.ours && found->second.type == cudaMemoryTypeHost,
         cudaErrorHostMemoryNotRegistered);
    device.memory.erase(found);
    emulator::remove_memory(at);
}

void describe(cudaPointerAttributes *to, const void *address) {
    must(to != nullptr, cudaErrorInvalidValue);
    const auto found = memory_at(address);
    const bool known = found != device.memory.end();
    memset(to, 0, sizeof *to);
    to->type = known ? found->second.type : cudaMemoryTypeUnregistered;
    to->device = known ? 0 : cudaInvalidDeviceId;
    if (known) to->devicePointer = (void *)address;
    if (to->type != cudaMemoryTypeDevice) to->hostPointer = (void *)address;
}

/* Throws if bytes cannot be where a caller says they are. Memory that is not in the list is the host's. */
enum class side { host, device, either };
void must_lie(const void *address, size_t bytes, side where) {
    const auto found = memory_at(address);
    if (found == device.memory.end()) return must(where != side::device && address != nullptr, cudaErrorInvalidValue);
    must(where != side::host || found->second.type != cudaMemoryTypeDevice, cudaErrorInvalidValue);
    must((uintptr_t)address + bytes <= found->first + found->second.bytes, cudaErrorInvalidValue);
}

struct rows { size_t pitch_to, pitch_from, width, height; };
rows one_row(size_t bytes) { return {bytes, bytes, bytes, 1}; }

void copy(void *to, const void *from, rows r, cudaMemcpyKind kind, cudaStream_t stream) {
    static const side to_side[] = {side::host, side::device, side::host, side::device, side::either};
    static const side from_side[] = {side::host, side::host, side::device, side::device, side::either};
    must((unsigned)kind <= cudaMemcpyDefault, cudaErrorInvalidMemcpyDirection);
    must(r.width <= r.pitch_to && r.width <= r.pitch_from, cudaErrorInvalidPitchValue);
    enqueue(stream, cudaGraphNodeTypeMemcpy, [=] {
        if (r.width == 0 || r.height == 0) return;
        must_lie(to, r.pitch_to * (r.height - 1) + r.width, to_side[kind]);
        must_lie(from, r.pitch_from * (r.height - 1) + r.width, from_side[kind]);
        for (size_t y = 0; y < r.height; y++)
            memmove((char *)to + y * r.pitch_to, (const char *)from + y * r.pitch_from, r.width);
    });
}

/* A copy that the host waits for. */
void copy_now(void *to, const void *from, rows r, cudaMemcpyKind kind, cudaStream_t stream) {
    wait_for(stream);
    copy(to, from, r, kind, stream);
}
/* of_host: the other way round, from the variable */
void copy_variable(const void *variable, void *other, size_t bytes, size_t offset, bool of_host, cudaMemcpyKind kind,
                   cudaStream_t stream) {
    size_t whole;
    unsigned char *const at = address_of(variable, &whole) + offset;
    must(offset <= whole && bytes <= whole - offset, cudaErrorInvalidValue);
    copy_now(of_host ? other : at, of_host ? at : other, one_row(bytes), kind, stream);
}

void fill(void *to, int value, size_t bytes, cudaStream_t stream) {
    enqueue(stream, cudaGraphNodeTypeMemset, [=] {
        if (bytes == 0) return;
        must_lie(to, bytes, side::device);
        memset(to, value, bytes);
    });
}

/* ---- Kernels ---- */

size_t most_threads(const emulator::facts &f) {
    return f.most_threads == 0 ? (size_t)BLOCK_THREADS : std::min<size_t>(f.most_threads, BLOCK_THREADS);
}
/* PTX does not tell how many registers a thread takes; compilers see to it that the largest block fits. */
size_t registers_of(const emulator::facts &f) {
    return f.registers > 0 ? f.registers : std::min<size_t>(128, REGISTERS / most_threads(f) / 8 * 8);
}

/* How many blocks a multiprocessor can run at a time. Its quarters have registers of their own, which they give to
 * warps by 256; shared memory goes to blocks by 128 bytes. */
int blocks_together(const CUkern_st *kernel, size_t threads, size_t dynamic_shared) {
    const emulator::facts f = emulator::facts_of(kernel->entry);
    const size_t shared = f.static_shared + dynamic_shared;
    if (threads > most_threads(f) || shared > SHARED_ASKED) return 0;
    const size_t warps = (threads + WARP - 1) / WARP;
    const size_t by_threads = std::min<size_t>(MULTIPROCESSOR_BLOCKS, MULTIPROCESSOR_THREADS / WARP / warps);
    const size_t by_registers = REGISTERS / 4 / rounded(registers_of(f) * WARP) * 4 / warps;
    const size_t by_shared = SHARED_MULTIPROCESSOR / ((shared + SHARED_SYSTEM + 127) / 128 * 128);
    return (int)std::min({by_threads, by_registers, by_shared});
}
void tell_occupancy(int *blocks, const void *function, int threads, size_t shared) {
    must(blocks != nullptr && threads > 0, cudaErrorInvalidValue);
    *blocks = blocks_together(kernel_of(function), (size_t)threads, shared);
}

/* CUDA's error for what the machine says. */
cudaError_t error_of(const std::string &wrong) {
    if (wrong.find(" at 0x") == wrong.npos) return cudaErrorLaunchFailure;
    return wrong.find("no multiple of") == wrong.npos ? cudaErrorIllegalAddress : cudaErrorMisalignedAddress;
}

/* The program sees that a kernel has failed in its next call, as with a GPU, where the launch is over before the kernel
 * begins. */
void run(const CUkern_st *kernel, const emulator::launch &how, const std::vector<unsigned char> &values) {
    must(device.broken == cudaSuccess, device.broken);
    const std::string wrong = emulator::run(kernel->entry, how, values.data());
    if (wrong.empty()) return;
    fprintf(stderr, "emulator: %s: %s\n", emulator::name_of(kernel->entry), wrong.c_str());
    device.broken = error_of(wrong);
}

void launch(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream,
            bool cooperative, unsigned cluster = 1) {
    const CUkern_st *const kernel = kernel_of(function);
    const emulator::facts f = emulator::facts_of(kernel->entry);
    must(grid.x - 1 < INT32_MAX && grid.y - 1 < UINT16_MAX && grid.z - 1 < UINT16_MAX, cudaErrorInvalidConfiguration);
    must(block.x - 1 < BLOCK_THREADS && block.y - 1 < BLOCK_THREADS && block.z - 1 < 64, cudaErrorInvalidConfiguration);
    const uint64_t threads = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
    must(threads <= BLOCK_THREADS && grid.x % cluster == 0, cudaErrorInvalidConfiguration);
    must(threads <= most_threads(f), cudaErrorInvalidValue);
    must(f.static_shared + shared <= SHARED_PLAIN || shared <= kernel->dynamic_limit, cudaErrorInvalidValue);
    const int together = blocks_together(kernel, threads, shared);
    must(together > 0, cudaErrorLaunchOutOfResources);
    must(!cooperative || blocks <= (uint64_t)together * multiprocessors_together, cudaErrorCooperativeLaunchTooLarge);
    std::vector<unsigned char> values;
    size_t i = 0;
    for (const emulator::place &p : emulator::parameters_of(kernel->entry)) {
        values.resize(std::max(values.size(), p.offset + p.bytes));
        memcpy(&values[p.offset], arguments[i++], p.bytes);
    }
    const emulator::launch how = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, cooperative, cluster};
    enqueue(stream, cudaGraphNodeTypeKernel, [=] { run(kernel, how, values); });
}

void launch_with_attributes(const cudaLaunchConfig_t &how, const void *function, void **arguments,
                            cudaStream_t stream) {
    bool cooperative = false;
    unsigned cluster = 1;
    for (unsigned i = 0; i < how.numAttrs; i++) {
        const cudaLaunchAttributeValue &value = how.attrs[i].val;
        if (how.attrs[i].id == cudaLaunchAttributeCooperative) cooperative = value.cooperative != 0;
        if (how.attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
        if (value.clusterDim.y > 1 || value.clusterDim.z > 1) refuse("a cluster of more than one dimension");
        cluster = std::max(1u, value.clusterDim.x);
        must(cluster <= CLUSTER_BLOCKS, cudaErrorInvalidClusterSize);
    }
    launch(function, how.gridDim, how.blockDim, arguments, how.dynamicSmemBytes, stream, cooperative, cluster);
}

void tell_attributes(cudaFuncAttributes *to, const void *function) {
    const CUkern_st *const kernel = kernel_of(function);
    const emulator::facts f = emulator::facts_of(kernel->entry);
    const size_t plain = SHARED_PLAIN - std::min<size_t>(SHARED_PLAIN, f.static_shared);
    memset(to, 0, sizeof *to);
    to->sharedSizeBytes = f.static_shared;
    to->localSizeBytes = f.local;
    to->maxThreadsPerBlock = (int)most_threads(f);
    to->numRegs = (int)registers_of(f);
    to->binaryVersion = 90;
    for (const image &i : kernel->from->images) to->ptxVersion = std::max(to->ptxVersion, i.target);
    to->maxDynamicSharedSizeBytes = (int)(kernel->dynamic_limit > 0 ? kernel->dynamic_limit : plain);
    to->preferredShmemCarveout = -1;
}

void set_attribute(const void *function, cudaFuncAttribute attribute, int value) {
    CUkern_st *const kernel = kernel_of(function);
    const size_t fixed = emulator::facts_of(kernel->entry).static_shared;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) refuse("this attribute of a function");
    must(value >= 0 && fixed + value <= SHARED_ASKED, cudaErrorInvalidValue);
    kernel->dynamic_limit = (size_t)value;
}

struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
thread_local std::vector<configuration> configurations; /* of <<< >>>, until the kernel's stub asks for it */

/* ---- Queries ---- */

void tell_attribute(int *value, cudaDeviceAttr attribute, int number) {
    static const std::map<int, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, BLOCK_THREADS}, {cudaDevAttrWarpSize, WARP},
        {cudaDevAttrMaxSharedMemoryPerBlock, SHARED_PLAIN}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, SHARED_ASKED},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SHARED_MULTIPROCESSOR},
        {cudaDevAttrReservedSharedMemoryPerBlock, SHARED_SYSTEM}, {cudaDevAttrMaxRegistersPerBlock, REGISTERS},
        {cudaDevAttrMaxRegistersPerMultiprocessor, REGISTERS}, {cudaDevAttrMultiProcessorCount, multiprocessors},
        {cudaDevAttrGlobalMemoryBusWidth, 5120},
        {cudaDevAttrMaxThreadsPerMultiProcessor, MULTIPROCESSOR_THREADS},
        {cudaDevAttrMaxBlocksPerMultiprocessor, MULTIPROCESSOR_BLOCKS}, {cudaDevAttrL2CacheSize, L2_BYTES},
        {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrCooperativeLaunch, 1}, {cudaDevAttrManagedMemory, 1}, {cudaDevAttrUnifiedAddressing, 1},
        {cudaDevAttrConcurrentManagedAccess, 1}};
    must(number == 0, cudaErrorInvalidDevice);
    const auto found = values.find(attribute);
    if (found == values.end()) refuse("this attribute of the device");
    *value = found->second;
}

void tell_properties(cudaDeviceProp *p, int number) {
    must(number == 0, cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated sm_90");
    p->major = 9;
    p->totalGlobalMem = memory_bytes;
    p->multiProcessorCount = multiprocessors;
    p->warpSize = WARP;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = BLOCK_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = INT32_MAX;
    p->maxGridSize[1] = p->maxGridSize[2] = UINT16_MAX;
    p->maxThreadsPerMultiProcessor = MULTIPROCESSOR_THREADS;
    p->maxBlocksPerMultiProcessor = MULTIPROCESSOR_BLOCKS;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->sharedMemPerBlock = SHARED_PLAIN;
    p->sharedMemPerBlockOptin = SHARED_ASKED;
    p->sharedMemPerMultiprocessor = SHARED_MULTIPROCESSOR;
    p->reservedSharedMemPerBlock = SHARED_SYSTEM;
    p->l2CacheSize = L2_BYTES;
    p->cooperativeLaunch = p->managedMemory = p->unifiedAddressing = p->concurrentManagedAccess = 1;
}

/* The driver's cuTensorMapEncodeTiled. */
CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                      const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                      const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill outside) {
    static const uint8_t element_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}, spans[] = {0, 32, 64, 128};
    const uint64_t unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
    const bool packed = interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    bool steps = false; /* over elements */
    emulator::tensor_map made{};
    if (map == nullptr || (uintptr_t)map % 64 != 0 || rank < (packed ? 1 : 3) || rank > 5 || sizes == nullptr
        || box == nullptr || element_strides == nullptr || (rank > 1 && strides == nullptr))
        return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)type > CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B || (unsigned)interleave > CU_TENSOR_MAP_INTERLEAVE_32B
        || (unsigned)swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B
        || (unsigned)promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B
        || (unsigned)outside > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
        return CUDA_ERROR_INVALID_VALUE;
    if (type >= sizeof element_bytes || swizzle >= sizeof spans) {
        fprintf(stderr, "emulator: a tensor map of elements below a byte or of atoms above 16 is not supported\n");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const uint64_t row = (uint64_t)box[0] * element_bytes[type]; /* bytes of the box */
    if (address == nullptr || (uintptr_t)address % unit != 0 || (unit == 32 && swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
        || (packed && (row % 16 != 0 || (spans[swizzle] > 0 && row > spans[swizzle])))
        || (outside != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && type < CU_TENSOR_MAP_DATA_TYPE_FLOAT16))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < rank; i++) {
        const uint64_t stride = i + 1 < rank ? strides[i] : 0;
        if (sizes[i] - 1 >= UINT32_MAX || box[i] - 1 >= 256 || element_strides[i] - 1 >= 8 || stride % unit != 0
            || stride >= (uint64_t)1 << 40)
            return CUDA_ERROR_INVALID_VALUE;
        made.sizes[i] = (uint32_t)sizes[i];
        made.box[i] = box[i];
        steps |= element_strides[i] != 1;
        if (i + 1 < rank) made.strides[i] = stride;
    }
    made.address = (uint64_t)(uintptr_t)address;
    made.rank = (uint8_t)rank;
    made.element_bytes = element_bytes[type];
    made.swizzle = spans[swizzle];
    if (steps || !packed || outside != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) {
        fprintf(stderr, "emulator: a tensor map that skips elements, interleaves or fills with NaN is not supported\n");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    memset(map, 0, sizeof *map);
    memcpy(map, &made, sizeof made);
    return CUDA_SUCCESS;
}

void find_in_driver(const char *name, void **function, cudaDriverEntryPointQueryResult *result) {
    must(name != nullptr && function != nullptr, cudaErrorInvalidValue);
    *function = strcmp(name, "cuTensorMapEncodeTiled") == 0 ? (void *)encode_tiled : nullptr;
    if (result != nullptr)
        *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
}

} // namespace

/* ---- What programs call ---- */

#pragma GCC visibility push(default)
extern "C" {

/* Programs tell what they hold when they start. */
void **__cudaRegisterFatBinary(void *wrapper) {
    fat_wrapper fat;
    memcpy(&fat, wrapper, sizeof fat);
    if (fat.magic != FAT_WRAPPER) give_up("the program is of an unknown kind");
    binary *made = new binary;
    if (fat.version == 1) add_image(made, fat.data);
    else
        for (const unsigned char *const *part = fat.linked; *part != nullptr; part++) add_image(made, *part);
    return (void **)made;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **from, const char *function, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *) {
    std::lock_guard<std::recursive_mutex> lock(device.mutex);
    CUkern_st *kernel = new CUkern_st{name, (binary *)from, nullptr, 0};
    device.kernels.emplace(function, kernel);
    device.kernels.emplace(kernel, kernel);
}
void __cudaRegisterVar(void **from, char *variable, char *, const char *name, int, size_t, int, int) {
    std::lock_guard<std::recursive_mutex> lock(device.mutex);
    device.symbols.emplace(variable, symbol{(binary *)from, name});
}
void __cudaRegisterManagedVar(void **, void **, char *, const char *, int, size_t, int, int) {
    give_up("__managed__ variables are not supported");
}

/* A function of the runtime. IN_STREAM: two of them, one for programs whose default stream is the thread's own. */
#define API(name, parameters, ...)                                                                                     \
    cudaError_t name parameters {                                                                                      \
        return call([&] { __VA_ARGS__; });                                                                             \
    }
#define IN_STREAM(name, parameters, ...)                                                                               \
    API(name, parameters, __VA_ARGS__)                                                                                 \
    cudaError_t name##_ptsz parameters {                                                                               \
        if (stream == nullptr) stream = cudaStreamPerThread;                                                           \
        return call([&] { __VA_ARGS__; });                                                                             \
    }

/* <<< >>> pushes, the kernel's stub pops. */
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st *stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (configurations.empty()) return cudaErrorUnknown;
    const configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    memcpy(stream, &last.stream, sizeof last.stream);
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    std::lock_guard<std::recursive_mutex> lock(device.mutex);
    const auto found = device.kernels.find(function);
    if (found == device.kernels.end()) return cudaErrorInvalidDeviceFunction;
    *kernel = found->second;
    return cudaSuccess;
}
IN_STREAM(__cudaLaunchKernel,
          (cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream),
          launch(kernel, grid, block, arguments, shared, stream, false))
IN_STREAM(cudaLaunchKernel,
          (const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream),
          launch(kernel, grid, block, arguments, shared, stream, false))
IN_STREAM(cudaLaunchCooperativeKernel,
          (const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream),
          launch(kernel, grid, block, arguments, shared, stream, true))
API(cudaLaunchKernelExC, (const cudaLaunchConfig_t *how, const void *kernel, void **arguments),
    launch_with_attributes(*how, kernel, arguments, how->stream))
API(cudaLaunchKernelExC_ptsz, (const cudaLaunchConfig_t *how, const void *kernel, void **arguments),
    launch_with_attributes(*how, kernel, arguments, how->stream != nullptr ? how->stream : cudaStreamPerThread))
IN_STREAM(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void *argument),
          enqueue(stream, cudaGraphNodeTypeHost, [=] { function(argument); }))
API(cudaFuncGetAttributes, (cudaFuncAttributes *to, const void *kernel), tell_attributes(to, kernel))
API(cudaFuncSetAttribute, (const void *kernel, cudaFuncAttribute attribute, int value),
    set_attribute(kernel, attribute, value))
API(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, const void *kernel, int threads, size_t shared),
    tell_occupancy(blocks, kernel, threads, shared))
API(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *blocks, const void *kernel, int threads, size_t shared, unsigned),
    tell_occupancy(blocks, kernel, threads, shared))

API(cudaMalloc, (void **at, size_t bytes), allocate(at, bytes, cudaMemoryTypeDevice))
API(cudaMallocManaged, (void **at, size_t bytes, unsigned), allocate(at, bytes, cudaMemoryTypeManaged))
API(cudaMallocHost, (void **at, size_t bytes), allocate(at, bytes, cudaMemoryTypeHost))
API(cudaHostAlloc, (void **at, size_t bytes, unsigned), allocate(at, bytes, cudaMemoryTypeHost))
API(cudaFree, (void *at), release(at, false))
API(cudaFreeHost, (void *at), release(at, true))
API(cudaHostRegister, (void *at, size_t bytes, unsigned), register_memory(at, bytes))
API(cudaHostUnregister, (void *at), unregister_memory(at))
API(cudaHostGetDevicePointer, (void **to, void *at, unsigned), must_lie(at, 1, side::device); *to = at)
API(cudaMemGetInfo, (size_t *left, size_t *all), *left = memory_bytes - device.used; *all = memory_bytes)
API(cudaPointerGetAttributes, (cudaPointerAttributes *to, const void *at), describe(to, at))
IN_STREAM(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
          copy(to, from, one_row(bytes), kind, stream))
IN_STREAM(cudaMemcpy2DAsync, (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
          size_t height, cudaMemcpyKind kind, cudaStream_t stream),
          copy(to, from, rows{to_pitch, from_pitch, width, height}, kind, stream))
IN_STREAM(cudaMemsetAsync, (void *to, int value, size_t bytes, cudaStream_t stream), fill(to, value, bytes, stream))
#define WAITS(suffix, stream)                                                                                          \
    API(cudaMemcpy##suffix, (void *to, const void *from, size_t bytes, cudaMemcpyKind kind),                           \
        copy_now(to, from, one_row(bytes), kind, stream))                                                              \
    API(cudaMemcpy2D##suffix, (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,           \
        size_t height, cudaMemcpyKind kind),                                                                           \
        copy_now(to, from, rows{to_pitch, from_pitch, width, height}, kind, stream))                                   \
    API(cudaMemcpyToSymbol##suffix,                                                                                    \
        (const void *to, const void *from, size_t bytes, size_t offset, cudaMemcpyKind kind),                          \
        copy_variable(to, (void *)from, bytes, offset, false, kind, stream))                                           \
    API(cudaMemcpyFromSymbol##suffix,                                                                                  \
        (void *to, const void *from, size_t bytes, size_t offset, cudaMemcpyKind kind),                                \
        copy_variable(from, to, bytes, offset, true, kind, stream))                                                    \
    API(cudaMemset##suffix, (void *to, int value, size_t bytes), fill(to, value, bytes, stream))
WAITS(, nullptr)
WAITS(_ptds, cudaStreamPerThread)
API(cudaGetSymbolAddress, (void **at, const void *variable), size_t bytes; *at = address_of(variable, &bytes))
API(cudaGetSymbolSize, (size_t *bytes, const void *variable), address_of(variable, bytes))

API(cudaStreamCreate, (cudaStream_t *to), make_stream(to, cudaStreamDefault))
API(cudaStreamCreateWithFlags, (cudaStream_t *to, unsigned flags), make_stream(to, flags))
API(cudaStreamCreateWithPriority, (cudaStream_t *to, unsigned flags, int), make_stream(to, flags))
API(cudaStreamDestroy, (cudaStream_t stream), destroy_stream(stream))
IN_STREAM(cudaStreamSynchronize, (cudaStream_t stream), wait_for(stream))
IN_STREAM(cudaStreamQuery, (cudaStream_t stream), wait_for(stream))
IN_STREAM(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), wait_in(stream, event, flags))
API(cudaEventCreate, (cudaEvent_t *to), make_event(to, cudaEventDefault))
API(cudaEventCreateWithFlags, (cudaEvent_t *to, unsigned flags), make_event(to, flags))
API(cudaEventDestroy, (cudaEvent_t event), destroy_event(event))
IN_STREAM(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), record(event, stream, 0))
IN_STREAM(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags),
          record(event, stream, flags))
API(cudaEventSynchronize, (cudaEvent_t event), wait_for_event(event))
API(cudaEventQuery, (cudaEvent_t event), wait_for_event(event))
API(cudaEventElapsedTime, (float *to, cudaEvent_t begin, cudaEvent_t end), measure(to, begin, end))

IN_STREAM(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), begin_capture(stream, mode))
IN_STREAM(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph), end_capture(stream, graph))
IN_STREAM(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus *to), tell_capture(stream, to))
API(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode *mode), std::swap(*mode, capture_mode))
API(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *to, size_t *count), list_nodes(graph, to, count))
API(cudaGraphNodeGetType, (cudaGraphNode_t node, cudaGraphNodeType *to), *to = node->type)
API(cudaGraphInstantiate, (cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long), instantiate(to, graph))
API(cudaGraphInstantiateWithFlags, (cudaGraphExec_t *to, cudaGraph_t graph, unsigned long long), instantiate(to, graph))
IN_STREAM(cudaGraphUpload, (cudaGraphExec_t, cudaStream_t stream), stream_of(stream))
IN_STREAM(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), launch_graph(exec, stream))
API(cudaGraphDestroy, (cudaGraph_t graph), must(graph != nullptr, cudaErrorInvalidValue); delete graph)
API(cudaGraphExecDestroy, (cudaGraphExec_t exec), must(exec != nullptr, cudaErrorInvalidValue); delete exec)

API(cudaGetDeviceCount, (int *count), *count = 1)
API(cudaGetDevice, (int *number), *number = 0)
API(cudaSetDevice, (int number), must(number == 0, cudaErrorInvalidDevice))
API(cudaSetDeviceFlags, (unsigned), )
API(cudaDeviceGetAttribute, (int *to, cudaDeviceAttr attribute, int number), tell_attribute(to, attribute, number))
API(cudaGetDeviceProperties, (cudaDeviceProp *to, int number), tell_properties(to, number))
API(cudaDriverGetVersion, (int *version), *version = CUDART_VERSION)
API(cudaRuntimeGetVersion, (int *version), *version = CUDART_VERSION)
API(cudaDeviceSynchronize, (void), must_spoil_none([](auto &) { return true; }, cudaErrorStreamCaptureUnsupported))
#define ENTRY_POINT(name, ...)                                                                                         \
    API(name, (const char *symbol, void **to, __VA_ARGS__, cudaDriverEntryPointQueryResult *result),                   \
        find_in_driver(symbol, to, result))
ENTRY_POINT(cudaGetDriverEntryPoint, unsigned long long)
ENTRY_POINT(cudaGetDriverEntryPoint_ptsz, unsigned long long)
ENTRY_POINT(cudaGetDriverEntryPointByVersion, unsigned, unsigned long long)
ENTRY_POINT(cudaGetDriverEntryPointByVersion_ptsz, unsigned, unsigned long long)

cudaError_t cudaPeekAtLastError(void) {
    std::lock_guard<std::recursive_mutex> lock(device.mutex);
    return device.broken != cudaSuccess ? device.broken : last_error;
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t code = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return code;
}
cudaError_t cudaDeviceReset(void) {
    std::lock_guard<std::recursive_mutex> lock(device.mutex);
    device.broken = last_error = cudaSuccess;
    return call([] {
        const std::map<uintptr_t, allocation> all = device.memory;
        for (const auto &m : all)
            if (m.second.ours) release((void *)m.first, m.second.type == cudaMemoryTypeHost);
    });
}
const char *cudaGetErrorName(cudaError_t code) {
#define ERROR_NAME(name, text) case name: return #name;
    switch ((int)code) { NAMED_ERRORS(ERROR_NAME) }
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t code) {
#define ERROR_TEXT(name, text) case name: return text;
    switch ((int)code) { NAMED_ERRORS(ERROR_TEXT) }
    return "unrecognized error code";
}

/* What no test needs. A program that calls one is told so. */
#define NOT_HERE(name)                                                                                                 \
    cudaError_t not_here_##name(void) __asm__(#name);                                                                  \
    cudaError_t not_here_##name(void) { return call([] { return refuse(#name); }); }
NOT_HERE(cudaMallocAsync) NOT_HERE(cudaMallocAsync_ptsz) NOT_HERE(cudaFreeAsync) NOT_HERE(cudaFreeAsync_ptsz)
NOT_HERE(cudaMallocPitch) NOT_HERE(cudaMalloc3D) NOT_HERE(cudaMemcpy3D) NOT_HERE(cudaMemcpy3DAsync)
NOT_HERE(cudaMemset2D) NOT_HERE(cudaMemset2DAsync) NOT_HERE(cudaMemcpyToSymbolAsync)
NOT_HERE(cudaMemcpyFromSymbolAsync) NOT_HERE(cudaMemcpyPeer) NOT_HERE(cudaMemcpyPeerAsync)
NOT_HERE(cudaMemPrefetchAsync) NOT_HERE(cudaMemPrefetchAsync_ptsz) NOT_HERE(cudaMemAdvise)
NOT_HERE(cudaDeviceGetDefaultMemPool) NOT_HERE(cudaMemPoolSetAttribute) NOT_HERE(cudaDeviceCanAccessPeer)
NOT_HERE(cudaDeviceEnablePeerAccess) NOT_HERE(cudaDeviceDisablePeerAccess) NOT_HERE(cudaIpcGetMemHandle)
NOT_HERE(cudaIpcOpenMemHandle) NOT_HERE(cudaIpcCloseMemHandle) NOT_HERE(cudaDeviceGetLimit)
NOT_HERE(cudaDeviceSetLimit) NOT_HERE(cudaDeviceGetPCIBusId) NOT_HERE(cudaFuncSetCacheConfig)
NOT_HERE(cudaFuncGetName) NOT_HERE(cudaGetFuncBySymbol) NOT_HERE(cudaGetKernel)
NOT_HERE(cudaOccupancyAvailableDynamicSMemPerBlock) NOT_HERE(cudaOccupancyMaxActiveClusters)
NOT_HERE(cudaStreamAddCallback) NOT_HERE(cudaStreamAddCallback_ptsz) NOT_HERE(cudaStreamSetAttribute)
NOT_HERE(cudaStreamSetAttribute_ptsz) NOT_HERE(cudaStreamGetFlags) NOT_HERE(cudaStreamGetFlags_ptsz)
NOT_HERE(cudaStreamGetPriority) NOT_HERE(cudaStreamGetPriority_ptsz) NOT_HERE(cudaDeviceGetStreamPriorityRange)
NOT_HERE(cudaStreamGetCaptureInfo) NOT_HERE(cudaStreamGetCaptureInfo_ptsz)
NOT_HERE(cudaStreamUpdateCaptureDependencies) NOT_HERE(cudaGraphCreate) NOT_HERE(cudaGraphClone)
NOT_HERE(cudaGraphAddNode) NOT_HERE(cudaGraphAddKernelNode) NOT_HERE(cudaGraphAddMemcpyNode)
NOT_HERE(cudaGraphAddMemsetNode) NOT_HERE(cudaGraphGetEdges) NOT_HERE(cudaGraphGetRootNodes)
NOT_HERE(cudaGraphNodeGetDependencies) NOT_HERE(cudaGraphKernelNodeGetParams) NOT_HERE(cudaGraphKernelNodeSetParams)
NOT_HERE(cudaGraphExecKernelNodeSetParams) NOT_HERE(cudaGraphExecUpdate) NOT_HERE(cudaGraphDebugDotPrint)
NOT_HERE(cudaProfilerStart) NOT_HERE(cudaProfilerStop)
} // extern "C"
#pragma GCC visibility pop
