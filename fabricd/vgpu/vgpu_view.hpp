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
    std::string gpu;  // "GPU-...", "MIG-..." or an ordinal; vGPUs with the same text share one GPU
    Bytes device_bytes = 0;   // of the whole GPU
    Bytes reserve_bytes = 0;  // of it, left for others: the quotas together stay below the rest
    Bytes context_bytes = 0;  // counted for each context of a process
    Bytes quota_bytes = 0;
    std::uint32_t share_percent = 100;
    /// Users whose processes may have it, besides root and the daemon's own. Empty: all that may
    /// talk to the daemon at all.
    std::vector<std::uint32_t> allow_uids = {};
    Bytes guaranteed_bytes = 0;  // of the quota; 0: all of it
    double priority = 1.0;
    std::uint64_t wait_ms = 0;  // that an allocation waits for room before it is refused
};

struct VgpuTenantView {
    std::int32_t pid = 0;  // as the daemon counts, also of a process in a container
    Bytes bytes = 0;
    std::uint64_t denied = 0;
    Bytes denied_bytes = 0;     // since the process attached
    std::uint64_t busy_ns = 0;  // likewise
};

struct VgpuView {
    VgpuSpec spec;                    // as configured
    Bytes quota_bytes = 0;            // in force
    Bytes target_bytes = 0;           // smaller than the quota while that shrinks
    std::uint32_t share_percent = 0;  // in force
    Bytes used_bytes = 0;
    Bytes peak_bytes = 0;      // since the ledger was made
    std::uint64_t denied = 0;  // allocations refused since the ledger was made
    /// What these asked for, one of them at most 1 TiB. Written by the tenants: it may say anything
    /// and may fall; code that takes differences caps them.
    Bytes denied_bytes = 0;
    Bytes wanted_bytes = 0;  // that allocations wait for now, before they are refused; likewise
    /// GPU time of all processes since the ledger was made, as NVML measured it; likewise input.
    /// Rises about once per second, five times with a share below 100 %, and only while they
    /// launch.
    std::uint64_t busy_ns = 0;
    /// Time for which launches of all processes that are there now were held up; likewise, and it
    /// falls when one of them ends.
    std::uint64_t waited_ns = 0;
    bool busy_known = false;  // false: nothing was measured yet, or NVML does not report it
    std::vector<VgpuTenantView> tenants;
};

/// What a request changes; 0 stays as it is.
struct VgpuOrder {
    std::string name;
    Bytes quota_bytes = 0;
    std::uint32_t share_percent = 0;
};

/// One of the quotas that change together: what one gives another one may take.
struct VgpuShift {
    std::string name;
    Bytes before_bytes = 0;  // what was granted when that was decided
    Bytes after_bytes = 0;
};

}  // namespace fabricd
