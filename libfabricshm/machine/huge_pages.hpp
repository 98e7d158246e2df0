// Which huge pages an arena can have on this machine.

#pragma once

#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/memfd_backend.hpp"

namespace fabricshm {

/// Bytes of free reserved huge pages of one size, on one node or (node -1) on all.
Bytes free_reserved_pages(const HostFiles& files, Bytes page_bytes, int node);

/// Sets plan.huge_page_bytes and plan.hugetlb for what is wanted, and logs one line when there are
/// no transparent ones. kUnsupported when the machine has no reserved pages of `reserved_bytes`.
Result<void> plan_huge_pages(MemfdPlan& plan, HugePages wanted, Bytes reserved_bytes,
                             const HostFiles& files);

}  // namespace fabricshm
