#include "libfabricshm/machine/emu_backend.hpp"

#include <utility>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/machine/huge_pages.hpp"
#include "libfabricshm/machine/memory_budget.hpp"
#include "libfabricshm/machine/node_pages.hpp"

namespace fabricshm {

namespace {

// All pages of an arena would lie where the daemon runs that makes them, and every rank of every
// socket fetch from there. In turn, all memory controllers work, and so do all homes of the lines
// by which many ranks wait for each other.
void spread_pages(MemfdPlan& plan, const HostFiles& files) {
    std::vector<int> nodes = nodes_of_ranks(files);
    if (nodes.size() < 2) return;
    plan.place += ", on " + std::to_string(nodes.size()) + " NUMA nodes in turn";
    plan.bind = [nodes = std::move(nodes)](void* data, Bytes bytes) -> Result<void> {
        const auto spread = spread_over(static_cast<std::byte*>(data), bytes, nodes);
        // It is faster, not needed: in a container that forbids it pages lie where they fall.
        if (!spread.ok()) {
            log(LogLevel::kInfo, "arena's pages lie on any node: %s",
                describe(spread.error()).c_str());
        }
        return {};
    };
}

}  // namespace

Result<std::unique_ptr<PoolBackend>> make_emu_backend(EmuOptions options) {
    MemfdPlan plan;
    plan.kind = "emu";
    plan.local = true;
    plan.place = "in ordinary memory";
    FABRIC_TRY_VOID(
        plan_huge_pages(plan, options.huge_pages, options.reserved_page_bytes, options.files));
    spread_pages(plan, options.files);
    // With copies: the pool outlives these options.
    plan.available = [files = options.files, page = plan.hugetlb ? plan.huge_page_bytes : 0] {
        return page != 0 ? free_reserved_pages(files, page, -1) : available_memory(files);
    };
    const Bytes available = plan.available();
    // Half: the ranks need memory, too.
    plan.capacity = options.capacity != 0 ? options.capacity : available / 2;
    if (plan.capacity > available) return Error{Errc::kNoMemory, 0, "start emu pool"};
    return std::unique_ptr<PoolBackend>(std::make_unique<MemfdBackend>(std::move(plan)));
}

}  // namespace fabricshm
