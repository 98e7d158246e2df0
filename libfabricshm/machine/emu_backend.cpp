#include "libfabricshm/machine/emu_backend.hpp"

#include "libfabricshm/machine/huge_pages.hpp"
#include "libfabricshm/machine/memory_budget.hpp"

namespace fabricshm {

Result<std::unique_ptr<PoolBackend>> make_emu_backend(EmuOptions options) {
    MemfdPlan plan;
    plan.kind = "emu";
    plan.place = "in ordinary memory";
    FABRIC_TRY_VOID(
        plan_huge_pages(plan, options.huge_pages, options.reserved_page_bytes, options.files));
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
