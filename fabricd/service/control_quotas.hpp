// Quotas of vGPUs for the control loop: what they are now; and what changes these and other things
// of the host.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/control/loop/page_actuator.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/vgpu/vgpu_limits.hpp"

namespace fabricd {

/// Adds the vGPUs of each GPU to windows. For the loop's thread.
class QuotaSource {
  public:
    /// `limits` outlives the source.
    explicit QuotaSource(const VgpuLimits& limits) : limits_(limits) {}

    void add_to(Window& window);

  private:
    const VgpuLimits& limits_;
    /// Of one vGPU, until the window before.
    struct Busy {
        std::uint64_t ns = 0;
        double share = 0;  // of the GPU's time, smoothed
        std::uint64_t waited_ns = 0;
        double held_up = 0;  // part of the last window
    };
    const Busy& busy_of(const VgpuView& vgpu, double length_s);

    std::map<std::string, Bytes> refusals_;  // bytes until the window before
    std::map<std::string, Busy> busy_;
};

/// What the daemon does itself: moves of shards, quotas of the pool. Empty: it does not.
struct HostActions {
    std::function<fabricshm::Result<void>(const MoveOrder&)> move_shard;
    std::function<fabricshm::Result<void>(const std::vector<QuotaShift>&)> shift_quotas;
};

class DaemonActuators : public PageActuator {
  public:
    DaemonActuators(SessionPages& pages, VgpuLimits& limits, HostActions host = {})
        : PageActuator(pages), limits_(limits), host_(std::move(host)) {}

    fabricshm::Result<void> move_shard(const std::string& shard, const std::string& node) override;
    fabricshm::Result<void> shift_quotas(const Quota& action) override;
    fabricshm::Result<void> shift_pool_quotas(const PoolQuota& action) override;
    fabricshm::Result<void> shift_cache_quotas(const CacheQuota& action) override;
    fabricshm::Result<void> set_compute_share(const std::string& user, unsigned percent) override;

  private:
    VgpuLimits& limits_;
    HostActions host_;
};

}  // namespace fabricd
