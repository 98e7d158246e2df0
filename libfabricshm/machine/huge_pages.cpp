#include "libfabricshm/machine/huge_pages.hpp"

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/machine/memory_budget.hpp"

namespace fabricshm {

namespace {

std::string pool_folder(Bytes page_bytes, int node) {
    const std::string all = "/sys/kernel/mm";
    const std::string one = "/sys/devices/system/node/node" + std::to_string(node);
    return (node < 0 ? all : one) + "/hugepages/hugepages-" + std::to_string(page_bytes / kKiB) +
           "kB";
}

}  // namespace

Bytes free_reserved_pages(const HostFiles& files, Bytes page_bytes, int node) {
    const auto free = files.number(pool_folder(page_bytes, node) + "/free_hugepages");
    return free.value_or(0) * page_bytes;
}

Result<void> plan_huge_pages(MemfdPlan& plan, HugePages wanted, Bytes reserved_bytes,
                             const HostFiles& files) {
    if (wanted == HugePages::kReserved) {
        if (!files.exists(pool_folder(reserved_bytes, -1))) {
            return Error{Errc::kUnsupported, 0, "use reserved huge pages of this size"};
        }
        plan.huge_page_bytes = reserved_bytes;
        plan.hugetlb = true;
        return {};
    }
    plan.huge_page_bytes = wanted == HugePages::kOff ? 0 : transparent_huge_page_bytes(files);
    // Slower, but not wrong.
    if (wanted == HugePages::kTransparent && plan.huge_page_bytes == 0) {
        log(LogLevel::kWarning,
            "no huge pages for shared memory: "
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled is not advise or always");
    }
    return {};
}

}  // namespace fabricshm
