#include "libfabricshm/machine/numa_backend.hpp"

#include <numa.h>
#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "libfabricshm/machine/huge_pages.hpp"
#include "libfabricshm/machine/memory_budget.hpp"

namespace fabricshm {

namespace {

constexpr int kStaticNodes = 1 << 15;  // MPOL_F_STATIC_NODES, which numaif.h lacks

Result<void> bind_to_node(void* data, Bytes bytes, int node) {
    bitmask* nodes = ::numa_allocate_nodemask();
    ::numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
    // The kernel reads one bit less than it is given. Static: the mask means this node even if the
    // control group's set of nodes changes. On a shared mapping the policy is kept with the file.
    const long failed =
        ::mbind(data, bytes, MPOL_BIND | kStaticNodes, nodes->maskp, nodes->size + 1, 0);
    const int saved = errno;
    ::numa_bitmask_free(nodes);
    if (failed != 0) return error_from_errno(saved, "bind arena to its node");
    return {};
}

}  // namespace

Result<void> verify_node(void* data, Bytes bytes, int node) {
    constexpr Bytes kSamples = 4096;
    const Bytes pages = bytes / kPageBytes;
    // Rounded down: it may be up to twice as many as kSamples.
    const Bytes stride = std::max<Bytes>(1, pages / kSamples);
    std::vector<void*> samples;
    for (Bytes page = 0; page < pages; page += stride) {
        samples.push_back(static_cast<std::byte*>(data) + page * kPageBytes);
    }
    // Without target nodes move_pages() moves nothing and reports where each page is.
    std::vector<int> found(samples.size(), -1);
    if (::move_pages(0, samples.size(), samples.data(), nullptr, found.data(), 0) != 0) {
        return error_from_errno(errno, "ask where the arena's pages are");
    }
    const bool all_there =
        std::all_of(found.begin(), found.end(), [node](int at) { return at == node; });
    if (!all_there) return Error{Errc::kMismatch, 0, "verify the node of the arena's pages"};
    return {};
}

Result<std::unique_ptr<PoolBackend>> make_numa_backend(NumaOptions options) {
    if (::numa_available() < 0) return Error{Errc::kUnsupported, 0, "start numa pool"};
    const int node = options.node;
    if (node < 0 || !available_memory_of_node(options.files, node)) {
        return Error{Errc::kNotFound, 0, "start numa pool: find the node"};
    }
    MemfdPlan plan;
    plan.kind = "numa";
    plan.place = "on NUMA node " + std::to_string(node);
    FABRIC_TRY_VOID(
        plan_huge_pages(plan, options.huge_pages, options.reserved_page_bytes, options.files));
    plan.available = [files = options.files, node, page = plan.hugetlb ? plan.huge_page_bytes : 0] {
        // Reserved pages are set aside: no other use of memory touches them.
        if (page != 0) return free_reserved_pages(files, page, node);
        return std::min(available_memory(files), available_memory_of_node(files, node).value_or(0));
    };
    plan.bind = [node](void* data, Bytes bytes) { return bind_to_node(data, bytes, node); };
    plan.verify = [node](void* data, Bytes bytes) { return verify_node(data, bytes, node); };

    const Bytes available = plan.available();
    plan.capacity = options.capacity != 0 ? options.capacity : available / 2;
    if (plan.capacity > available) return Error{Errc::kNoMemory, 0, "start numa pool"};
    return std::unique_ptr<PoolBackend>(std::make_unique<MemfdBackend>(std::move(plan)));
}

}  // namespace fabricshm
