// Mock driver: start, contexts, launches, graphs, and how functions are found.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/mock_gpu/driver.hpp"
#include "tests/support/mock_gpu/host.hpp"
#include "tests/support/mock_gpu/streams.hpp"

using namespace mock_gpu;

namespace mock_gpu {

Driver& driver() {
    static Driver& made = *new Driver;
    return made;
}

namespace {
thread_local Context* t_current = nullptr;
thread_local int t_capture_mode = 0;
}  // namespace

bool may_do_unsafe() {
    const std::lock_guard lock(driver().mutex);
    if (driver().capturing.empty() || t_capture_mode == kCaptureRelaxed) return true;
    driver().is_capture_broken = true;
    return false;
}

Context* current() {
    return t_current;
}

int device_count() {
    static const char* const count = std::getenv("FABRIC_MOCK_DEVICES");
    return count != nullptr ? std::atoi(count) : 1;
}

Pointer new_address(std::uint64_t bytes) {
    const Pointer address = driver().next_address;
    driver().next_address += (bytes + (4U << 20)) >> 21 << 21;
    return address;
}

std::uint64_t threads_of(const unsigned int (&grid)[3], const unsigned int (&block)[3]) {
    std::uint64_t threads = 1;
    for (int i = 0; i < 3; ++i) threads *= std::uint64_t{grid[i]} * block[i];
    return threads;
}

}  // namespace mock_gpu

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

Status make_context(Handle* out, int device_number) {
    const Lock lock(driver().mutex);
    if (!driver().is_up) return kNotInitialized;
    if (device_number < 0 || device_number >= device_count()) return kInvalidDevice;
    if (!take(device().context_bytes)) return kOutOfMemory;
    auto* context = new Context;
    context->device = device_number;
    context->bytes = device().context_bytes;
    driver().contexts.insert(context);
    t_current = context;
    *out = context;
    return kSuccess;
}

void end_context(Context& context) {
    for (const Pointer pointer : context.pointers) {
        give(driver().linear[pointer].bytes);
        driver().linear.erase(pointer);
    }
    context.pointers.clear();
    give(context.bytes);
    context.bytes = 0;
    std::fill(std::begin(context.limits), std::end(context.limits), 0);
    if (t_current == &context) t_current = nullptr;
}

Status launch(const unsigned int (&grid)[3], const unsigned int (&block)[3], Handle stream,
              NamedLaunch named = {}) {
    if (grid[0] > 0x7fffffff) return kInvalidValue;
    {
        const Lock lock(driver().mutex);
        if (const auto graph = driver().capturing.find(stream); graph != driver().capturing.end()) {
            auto node = std::make_unique<Node>();
            node->type = kKernelNode;
            std::copy(grid, grid + 3, node->kernel.grid);
            std::copy(block, block + 3, node->kernel.block);
            node->named = std::move(named);
            graph->second->nodes.push_back(std::move(node));
            return kSuccess;
        }
    }
    run(threads_of(grid, block));
    return kSuccess;
}

void add_up(const Graph& graph, Executable& sum) {
    for (const auto& node : graph.nodes) {
        if (node->type == kKernelNode) {
            sum.threads += threads_of(node->kernel.grid, node->kernel.block);
            if (node->named.function != nullptr) sum.named.push_back(node->named);
        } else if (node->type == kMemAllocNode) {
            sum.bytes += taken_by(node->alloc.bytes);
        } else if (node->child != nullptr) {
            add_up(*node->child, sum);
        }
    }
}

Status instantiate(Handle* out, Handle graph) {
    const Lock lock(driver().mutex);
    auto executable = std::make_unique<Executable>();
    add_up(*static_cast<Graph*>(graph), *executable);
    if (!take(executable->bytes)) return kOutOfMemory;
    if (current() != nullptr) executable->device = current()->device;
    *out = executable.release();
    return kSuccess;
}

template <typename Fill>
Status add_node(Handle* out, Handle graph, int type, Fill fill) {
    const Lock lock(driver().mutex);
    auto node = std::make_unique<Node>();
    node->type = type;
    fill(*node);
    *out = node.get();
    static_cast<Graph*>(graph)->nodes.push_back(std::move(node));
    return kSuccess;
}

}  // namespace

MOCK_EXPORT Status cuInit(unsigned int) {
    const Lock lock(driver().mutex);
    driver().is_up = true;
    return kSuccess;
}
MOCK_EXPORT Status cuDriverGetVersion(int* version) {
    *version = mock_gpu_host()->version;
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceGetCount(int* count) {
    *count = mock_gpu_host()->has_device ? device_count() : 0;
    return *count > 0 ? kSuccess : kNoDevice;
}
MOCK_EXPORT Status cuDeviceGet(fabricshm::cuda::Device* out, int ordinal) {
    *out = ordinal;
    return ordinal >= 0 && ordinal < device_count() ? kSuccess : kInvalidDevice;
}
MOCK_EXPORT Status cuDeviceGetUuid_v2(Uuid* out, fabricshm::cuda::Device number) {
    const int which = number ^ mock_gpu_host()->first_device;
    for (int i = 0; i < 16; ++i) out->bytes[i] = static_cast<unsigned char>(i * 17 + which);
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceCanAccessPeer(int* out, fabricshm::cuda::Device own,
                                         fabricshm::cuda::Device other) {
    if (own == other) return kInvalidDevice;
    *out = mock_gpu_host()->can_access_peers ? 1 : 0;
    return kSuccess;
}
MOCK_EXPORT Status cuCtxCreate_v2(Handle* out, unsigned int, fabricshm::cuda::Device number) {
    return make_context(out, number);
}
MOCK_EXPORT Status cuCtxCreate_v4(Handle* out, void*, unsigned int,
                                  fabricshm::cuda::Device number) {
    return make_context(out, number);
}
MOCK_EXPORT Status cuCtxDestroy_v2(Handle context) {
    const Lock lock(driver().mutex);
    auto* gone = static_cast<Context*>(context);
    if (driver().contexts.erase(gone) == 0) return kInvalidContext;
    end_context(*gone);
    delete gone;
    return kSuccess;
}
MOCK_EXPORT Status cuCtxSetCurrent(Handle context) {
    t_current = static_cast<Context*>(context);
    return kSuccess;
}
MOCK_EXPORT Status cuCtxGetCurrent(Handle* out) {
    *out = t_current;
    return kSuccess;
}
MOCK_EXPORT Status cuCtxGetDevice(fabricshm::cuda::Device* out) {
    *out = t_current != nullptr ? t_current->device : 0;
    return t_current != nullptr ? kSuccess : kInvalidContext;
}
// Not while a stream is captured.
MOCK_EXPORT Status cuCtxSynchronize() {
    if (!may_do_unsafe()) return kCaptureUnsupported;
    if (mock_gpu_host()->own_time) wait_for_all_streams();
    return kSuccess;
}
MOCK_EXPORT Status cuDevicePrimaryCtxRetain(Handle* out, fabricshm::cuda::Device) {
    const Lock lock(driver().mutex);
    if (!driver().is_up) return kNotInitialized;
    if (driver().primary_count == 0) {
        if (!take(device().context_bytes)) return kOutOfMemory;
        driver().primary.bytes = device().context_bytes;
    }
    ++driver().primary_count;
    *out = &driver().primary;
    return kSuccess;
}
MOCK_EXPORT Status cuDevicePrimaryCtxRelease_v2(fabricshm::cuda::Device) {
    const Lock lock(driver().mutex);
    if (driver().primary_count == 0) return kInvalidContext;
    if (--driver().primary_count == 0) end_context(driver().primary);
    return kSuccess;
}
MOCK_EXPORT Status cuDevicePrimaryCtxGetState(fabricshm::cuda::Device, unsigned int* flags,
                                              int* active) {
    const Lock lock(driver().mutex);
    *flags = 0;
    *active = driver().primary_count > 0 ? 1 : 0;
    return kSuccess;
}
// The heap and the buffer are taken at once; a stack for each of 1024 threads.
MOCK_EXPORT Status cuCtxSetLimit(int limit, std::size_t bytes) {
    const Lock lock(driver().mutex);
    if (current() == nullptr) return kInvalidContext;
    if (limit > kLimitMallocHeap) return kInvalidValue;
    std::uint64_t& held = current()->limits[limit];
    const std::uint64_t taken = taken_by(limit == 0 ? bytes * 1024 : bytes);
    if (taken > held && !take(taken - held)) return kOutOfMemory;
    if (taken < held) give(held - taken);
    current()->bytes += taken - held;
    held = taken;
    return kSuccess;
}
MOCK_EXPORT Status cuModuleLoadData(Handle* out, const void*) {
    // Code and globals of 4 MiB, which end with the context.
    const Lock lock(driver().mutex);
    constexpr std::uint64_t kCode = 4U << 20;
    if (mock_gpu_host()->module_status != kSuccess) return mock_gpu_host()->module_status;
    if (!take(kCode)) return kOutOfMemory;
    ++mock_gpu_host()->modules;
    if (current() != nullptr) current()->bytes += kCode;
    *out = reinterpret_cast<Handle>(0x1000);
    return kSuccess;
}

MOCK_EXPORT Status cuLaunchKernel(Handle function, unsigned int b, unsigned int c, unsigned int d,
                                  unsigned int e, unsigned int f, unsigned int g, unsigned int,
                                  Handle stream, void** parameters, void**) {
    const Status recorded = record_launch(function, b, e, stream, parameters);
    if (recorded != kSuccess) return recorded;
    return launch({b, c, d}, {e, f, g}, stream, named_launch(function, b, e, parameters));
}
MOCK_EXPORT Status cuLaunchKernel_ptsz(Handle a, unsigned int b, unsigned int c, unsigned int d,
                                       unsigned int e, unsigned int f, unsigned int g,
                                       unsigned int h, Handle stream, void** j, void** k) {
    return cuLaunchKernel(a, b, c, d, e, f, g, h, stream, j, k);
}
MOCK_EXPORT Status cuLaunchKernelEx(const LaunchConfig* config, Handle, void**, void**) {
    return launch(config->grid, config->block, config->stream);
}
MOCK_EXPORT Status cuLaunchCooperativeKernel(Handle, unsigned int b, unsigned int c, unsigned int d,
                                             unsigned int e, unsigned int f, unsigned int g,
                                             unsigned int, Handle stream, void**) {
    return launch({b, c, d}, {e, f, g}, stream);
}
// A launch of a form that came after the shim.
MOCK_EXPORT Status cuLaunchKernelFromTheFuture(Handle) {
    return kSuccess;
}

MOCK_EXPORT Status cuStreamBeginCapture_v2(Handle stream, int) {
    const Lock lock(driver().mutex);
    driver().capturing[stream] = new Graph;
    return kSuccess;
}
MOCK_EXPORT Status cuStreamEndCapture(Handle stream, Handle* graph) {
    const Lock lock(driver().mutex);
    *graph = driver().capturing[stream];
    driver().capturing.erase(stream);
    if (!std::exchange(driver().is_capture_broken, false)) return kSuccess;
    *graph = nullptr;
    return kCaptureInvalidated;
}
MOCK_EXPORT Status cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(*mode, t_capture_mode);
    return kSuccess;
}
// A null stream is the thread's own in these, and the legacy one without `_ptsz`.
MOCK_EXPORT Status cuStreamBeginCapture_v2_ptsz(Handle stream, int mode) {
    return cuStreamBeginCapture_v2(stream, mode);
}
MOCK_EXPORT Status cuStreamEndCapture_ptsz(Handle stream, Handle* graph) {
    return cuStreamEndCapture(stream, graph);
}
MOCK_EXPORT Status cuStreamIsCapturing_ptsz(Handle stream, int* state) {
    const Lock lock(driver().mutex);
    *state = driver().capturing.count(stream) > 0 ? 1 : 0;
    return kSuccess;
}
MOCK_EXPORT Status cuStreamIsCapturing(Handle stream, int* state) {
    const Lock lock(driver().mutex);
    // The legacy stream must not be asked for anything while one that it waits for is captured.
    if (stream == nullptr && !driver().capturing.empty()) return kCaptureImplicit;
    *state = driver().capturing.count(stream) > 0 ? 1 : 0;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphCreate(Handle* out, unsigned int) {
    *out = new Graph;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphDestroy(Handle graph) {
    delete static_cast<Graph*>(graph);
    return kSuccess;
}
MOCK_EXPORT Status cuGraphAddKernelNode_v2(Handle* out, Handle graph, const Handle*, std::size_t,
                                           const KernelNode* kernel) {
    return add_node(out, graph, kKernelNode, [&](Node& node) { node.kernel = *kernel; });
}
MOCK_EXPORT Status cuGraphAddMemAllocNode(Handle* out, Handle graph, const Handle*, std::size_t,
                                          MemAllocNode* alloc) {
    alloc->pointer = new_address(alloc->bytes);
    return add_node(out, graph, kMemAllocNode, [&](Node& node) { node.alloc = *alloc; });
}
MOCK_EXPORT Status cuGraphAddChildGraphNode(Handle* out, Handle graph, const Handle*, std::size_t,
                                            Handle child) {
    return add_node(out, graph, kChildGraphNode,
                    [&](Node& node) { node.child = static_cast<Graph*>(child); });
}
MOCK_EXPORT Status cuGraphAddNode_v2(Handle* out, Handle graph, const Handle*, const void*,
                                     std::size_t, NodeParams* params) {
    return add_node(out, graph, params->type, [&](Node& node) {
        if (params->type == kMemAllocNode) node.alloc = params->alloc;
    });
}
MOCK_EXPORT Status cuGraphGetNodes(Handle graph, Handle* nodes, std::size_t* count) {
    const auto& all = static_cast<Graph*>(graph)->nodes;
    if (nodes == nullptr) {
        *count = all.size();
        return kSuccess;
    }
    *count = std::min(*count, all.size());
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = all[i].get();
    return kSuccess;
}
MOCK_EXPORT Status cuGraphNodeGetType(Handle node, int* type) {
    *type = static_cast<Node*>(node)->type;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphKernelNodeGetParams_v2(Handle node, KernelNode* out) {
    *out = static_cast<Node*>(node)->kernel;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphMemAllocNodeGetParams(Handle node, MemAllocNode* out) {
    *out = static_cast<Node*>(node)->alloc;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphChildGraphNodeGetGraph(Handle node, Handle* out) {
    *out = static_cast<Node*>(node)->child;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphInstantiate(Handle* out, Handle graph, Handle*, char*, std::size_t) {
    return instantiate(out, graph);
}
MOCK_EXPORT Status cuGraphInstantiateWithFlags(Handle* out, Handle graph, unsigned long long) {
    return instantiate(out, graph);
}
MOCK_EXPORT Status cuGraphInstantiateWithParams(Handle* out, Handle graph, void*) {
    return instantiate(out, graph);
}
MOCK_EXPORT Status cuGraphExecUpdate_v2(Handle executable, Handle graph, void*) {
    Executable fresh;
    add_up(*static_cast<Graph*>(graph), fresh);
    static_cast<Executable*>(executable)->threads = fresh.threads;
    return kSuccess;
}
MOCK_EXPORT Status cuGraphLaunch(Handle executable, Handle stream) {
    for (const NamedLaunch& one : static_cast<Executable*>(executable)->named) {
        // The driver only reads it.
        void* parameters[] = {const_cast<std::byte*>(one.argument.data())};
        if (one.argument.empty()) continue;
        const Status done =
            record_launch(one.function, one.blocks, one.threads, stream, parameters);
        if (done != kSuccess) return done;
    }
    run(static_cast<Executable*>(executable)->threads);
    return kSuccess;
}
MOCK_EXPORT Status cuGraphExecDestroy(Handle executable) {
    const Lock lock(driver().mutex);
    auto* gone = static_cast<Executable*>(executable);
    driver().graph_bytes[gone->device] += gone->bytes;
    delete gone;
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceGraphMemTrim(fabricshm::cuda::Device number) {
    const Lock lock(driver().mutex);
    if (!may_do_unsafe()) return kCaptureUnsupported;
    give(driver().graph_bytes[number]);
    driver().graph_bytes[number] = 0;
    return kSuccess;
}
