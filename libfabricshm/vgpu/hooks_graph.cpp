// Graphs: an executable graph is charged with the memory of its allocation nodes for as long as it
// lives, and each launch with the compute of its kernels.

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "libfabricshm/vgpu/captures.hpp"
#include "libfabricshm/vgpu/charge_table.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/throttle.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

// Of graphs in graphs: deeper ones are not counted. The driver refuses a graph that contains
// itself, so this only bounds the stack.
constexpr int kMaxDepth = 32;

struct Cost {
    std::uint64_t bytes = 0;
    std::uint64_t work = 0;
};

// What a launch of each executable graph costs; its memory is in the table of executables().
struct Works {
    std::mutex mutex;
    std::unordered_map<Handle, std::uint64_t> all;
};

Works& works() {
    static Works& made = *new Works;  // never destroyed, as the charge tables
    return made;
}

void set_work(Handle executable, std::uint64_t work) {
    Works& known = works();
    const std::lock_guard lock(known.mutex);
    known.all[executable] = work;
}

void add_cost(Handle graph, int depth, Cost& sum);

// Nodes of other kinds cost nothing: copies, memsets, events, functions of the host. Nor do the
// bodies of conditional nodes (CUDA 12.4), which may run any number of times or never: only NVML
// sees their time.
void add_node_cost(Handle node, int depth, Cost& sum) {
    const Helpers& ask = helpers();
    int type = -1;
    if (ask.node_type(node, &type) != kSuccess) return;
    if (type == kKernelNode && ask.kernel_node != nullptr) {
        KernelNode kernel{};
        if (ask.kernel_node(node, &kernel) == kSuccess) {
            sum.work = std::min(kMaxWork, sum.work + work_of(kernel.grid, kernel.block));
        }
    } else if (type == kMemAllocNode && ask.alloc_node != nullptr) {
        MemAllocNode alloc{};
        if (ask.alloc_node(node, &alloc) == kSuccess) sum.bytes += device_bytes(alloc.bytes);
    } else if (type == kChildGraphNode && ask.child_graph != nullptr) {
        Handle child = nullptr;
        if (ask.child_graph(node, &child) == kSuccess) add_cost(child, depth + 1, sum);
    }
}

void add_cost(Handle graph, int depth, Cost& sum) {
    const Helpers& ask = helpers();
    std::size_t count = 0;
    const bool can_ask = depth < kMaxDepth && ask.graph_nodes != nullptr &&
                         ask.node_type != nullptr &&
                         ask.graph_nodes(graph, nullptr, &count) == kSuccess;
    if (!can_ask || count == 0) return;
    std::vector<Handle> nodes(count);
    if (ask.graph_nodes(graph, nodes.data(), &count) != kSuccess) return;
    nodes.resize(count);
    for (const Handle node : nodes) add_node_cost(node, depth, sum);
}

// Memory nodes may free as well: what is alive at a time may be less than the sum, never more. What
// a graph allocates and leaves to the program to free is charged as long as the graph, though the
// driver keeps it until it is freed: a program that destroys the graph first holds it uncharged.
Cost cost_of(Handle graph) {
    Cost sum;
    add_cost(graph, 0, sum);
    return sum;
}

template <typename Call>
Status instantiate(Handle* out, Handle graph, Call call) {
    Vgpu* vgpu = current_vgpu();
    if (vgpu == nullptr) return call();
    // Before the driver's part, which takes the memory: asking for nodes changes nothing.
    const Cost cost = cost_of(graph);
    const Status status =
        charged(vgpu, cost.bytes, executables(), call, [out] { return key_of(*out); });
    if (status == kSuccess) set_work(*out, cost.work);
    return status;
}

Status instantiate_1(Status (*own)(Handle*, Handle, Handle*, char*, std::size_t), Handle* out,
                     Handle graph, Handle* failed, char* text, std::size_t bytes) {
    return instantiate(out, graph, [&] { return own(out, graph, failed, text, bytes); });
}

Status instantiate_flags(Status (*own)(Handle*, Handle, unsigned long long), Handle* out,
                         Handle graph, unsigned long long flags) {
    return instantiate(out, graph, [&] { return own(out, graph, flags); });
}

Status instantiate_params(Status (*own)(Handle*, Handle, void*), Handle* out, Handle graph,
                          void* parameters) {
    return instantiate(out, graph, [&] { return own(out, graph, parameters); });
}

// The memory of an executable graph can't change by an update, its kernels can.
template <typename Call>
Status update(Handle executable, Handle graph, Call call) {
    const Status status = call();
    if (status == kSuccess && current_vgpu() != nullptr) {
        set_work(executable, cost_of(graph).work);
    }
    return status;
}

Status update_exec_1(Status (*own)(Handle, Handle, Handle*, int*), Handle executable, Handle graph,
                     Handle* failed, int* result) {
    return update(executable, graph, [&] { return own(executable, graph, failed, result); });
}

Status update_exec_2(Status (*own)(Handle, Handle, void*), Handle executable, Handle graph,
                     void* result) {
    return update(executable, graph, [&] { return own(executable, graph, result); });
}

Status destroy_exec(Status (*own)(Handle), Handle executable) {
    // Out of the tables first: the driver may give its handle to the next one at once. One that is
    // launched nevertheless is free of charge.
    {
        Works& known = works();
        const std::lock_guard lock(known.mutex);
        known.all.erase(executable);
    }
    const auto charge = executables().take(key_of(executable));
    const Status status = own(executable);
    if (!charge) return status;
    if (status != kSuccess) {
        executables().put(key_of(executable), *charge);
        return status;
    }
    // Graphs keep what they allocated in a pool of the device's own until it is trimmed: else the
    // bytes that are released here would still be taken. The current device may be another one.
    if (charge->bytes > 0 && helpers().graph_trim != nullptr) {
        const BesideCaptures beside;
        helpers().graph_trim(charge->vgpu->device());
    }
    charge->vgpu->release(charge->bytes);
    return status;
}

Status launch_graph(Status (*own)(Handle, Handle), Handle executable, Handle stream) {
    const auto work = [&]() -> std::uint64_t {
        Works& known = works();
        const std::lock_guard lock(known.mutex);
        const auto found = known.all.find(executable);
        return found != known.all.end() ? found->second : 0;
    };
    return launched(current_vgpu(), work, [&] { return own(executable, stream); });
}

// A node that no quota would ever allow is refused at once; all together are counted when the graph
// is instantiated.
bool is_hopeless(std::uint64_t bytes) {
    Vgpu* vgpu = current_vgpu();
    const std::uint64_t wanted = device_bytes(bytes);
    if (vgpu == nullptr || vgpu->can_ever_hold(wanted)) return false;
    vgpu->refused(wanted);
    return true;
}

bool is_hopeless(const NodeParams* node) {
    return node != nullptr && node->type == kMemAllocNode && is_hopeless(node->alloc.bytes);
}

Status add_alloc_node(Status (*own)(Handle*, Handle, const Handle*, std::size_t, MemAllocNode*),
                      Handle* out, Handle graph, const Handle* after, std::size_t count,
                      MemAllocNode* node) {
    if (node != nullptr && is_hopeless(node->bytes)) return kOutOfMemory;
    return own(out, graph, after, count, node);
}

Status add_node_1(Status (*own)(Handle*, Handle, const Handle*, std::size_t, NodeParams*),
                  Handle* out, Handle graph, const Handle* after, std::size_t count,
                  NodeParams* node) {
    if (is_hopeless(node)) return kOutOfMemory;
    return own(out, graph, after, count, node);
}

Status add_node_2(Status (*own)(Handle*, Handle, const Handle*, const void*, std::size_t,
                                NodeParams*),
                  Handle* out, Handle graph, const Handle* after, const void* edges,
                  std::size_t count, NodeParams* node) {
    if (is_hopeless(node)) return kOutOfMemory;
    return own(out, graph, after, edges, count, node);
}

}  // namespace

FABRIC_GRAPH_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda
