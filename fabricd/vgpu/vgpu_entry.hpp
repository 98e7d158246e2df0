// One vGPU as VgpuLimits keeps it. For the files of VgpuLimits only.

#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "fabricd/vgpu/vgpu_files.hpp"
#include "fabricd/vgpu/vgpu_limits.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

struct VgpuLimits::Vgpu {
    VgpuSpec spec;
    VgpuFiles files;
    std::unique_ptr<fabricshm::UsageLedger> ledger;  // touched inside of files.read() only
    fabricshm::Limits
        limits;         // what the page says; the page itself is never read back while running
    Bytes granted = 0;  // as was published last
    std::atomic<bool> said_cut{false};
    std::atomic<bool> said_long{false};

    void publish() {
        write_limits(files.page(), limits);
        const Bytes before = std::exchange(granted, limits.grant_bytes());
        if (granted <= before) return;
        // Against that of UsageLedger::want(): a waiter is seen here, or sees the larger quota.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        (void)files.read([&] { return ledger->room_grew(), true; });
    }
    Bytes usable() const {
        return spec.device_bytes - std::min(spec.device_bytes, spec.reserve_bytes);
    }
    bool is_shrinking() const { return limits.target_bytes < limits.quota_bytes; }

    /// As VgpuFiles::read(); says once that the ledger is gone.
    template <typename Use>
    auto read(Use use) {
        auto answer = files.read(use);
        if (!answer && !said_cut.exchange(true, std::memory_order_relaxed)) {
            fabricshm::log(
                fabricshm::LogLevel::kError,
                "vGPU %s: a process cut its ledger short; until fabricd starts again its "
                "quota counts as used and no process can attach",
                spec.name.c_str());
        }
        return answer;
    }
    void begin();
};

}  // namespace fabricd
