// vGPUs as plain data: what the device file says of them, and what is true now.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;

/// One vGPU as the device file has it.
struct VgpuSpec {
    std::string name;
    std::string gpu;          // "GPU-..." or an ordinal; vGPUs with the same text share one GPU
    Bytes device_bytes = 0;   // of the whole GPU
    Bytes reserve_bytes = 0;  // of it, left for others: the quotas together stay below the rest
    Bytes context_bytes = 0;  // counted for each context of a process
    Bytes quota_bytes = 0;
    std::uint32_t share_percent = 100;
};

struct VgpuTenantView {
    std::int32_t pid = 0;
    Bytes bytes = 0;
    std::uint64_t denied = 0;
};

struct VgpuView {
    VgpuSpec spec;                    // as configured
    Bytes quota_bytes = 0;            // in force
    Bytes target_bytes = 0;           // smaller than the quota while that shrinks
    std::uint32_t share_percent = 0;  // in force
    Bytes used_bytes = 0;
    Bytes peak_bytes = 0;  // since the ledger was made
    std::uint64_t denied = 0;
    std::vector<VgpuTenantView> tenants;
};

/// What somebody wants changed; 0 stays as it is.
struct VgpuOrder {
    std::string name;
    Bytes quota_bytes = 0;
    std::uint32_t share_percent = 0;
};

}  // namespace fabricd
