// The checks of the host's memory: pages, limits, and what a pool takes of it.

#pragma once

#include "fabricd/ctl/doctor/finding.hpp"
#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd::doctor {

Finding arena_huge_pages(const HostFacts& host);
Finding program_huge_pages(const HostFacts& host);
Finding reserved_huge_pages(const HostFacts& host);
Finding numa_balancing(const HostFacts& host);
Finding pool_size(const HostFacts& host);
Finding memory_limit(const HostFacts& host);
Finding overcommit(const HostFacts& host);
Finding swap(const HostFacts& host);
Finding shared_memory(const HostFacts& host);

}  // namespace fabricd::doctor
