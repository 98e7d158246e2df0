// Quotas of vGPUs for the control loop: what they are now, and how they are changed.

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "fabricd/control/page_actuator.hpp"
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
    std::map<std::string, Bytes> refusals_;  // bytes until the window before
};

/// Directives to pages, quotas and compute shares to vGPUs.
class DaemonActuators : public PageActuator {
  public:
    DaemonActuators(SessionPages& pages, VgpuLimits& limits)
        : PageActuator(pages), limits_(limits) {}

    fabricshm::Result<void> resize_quota(const std::string& user, std::uint64_t bytes) override;
    fabricshm::Result<void> set_compute_share(const std::string& user, unsigned percent) override;

  private:
    VgpuLimits& limits_;
};

}  // namespace fabricd
