// CpuSource: the packages of this host, from /proc and /sys.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/telemetry/device_source.hpp"
#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/packages.hpp"

namespace fabricd {

/// One device per package: busy share since the sample before, and the memory of its nodes. Costs a
/// read of /proc/stat and of one small file per node.
class CpuSource final : public DeviceSource {
  public:
    CpuSource(fabricshm::HostFiles files, std::vector<fabricshm::Package> packages);
    void sample(std::int64_t now_ns, std::vector<DeviceSample>& devices) override;

  private:
    struct Ticks {
        std::uint64_t busy = 0;
        std::uint64_t total = 0;
    };

    std::vector<Ticks> read_ticks() const;
    void add_memory(const fabricshm::Package& package, DeviceSample& device) const;

    fabricshm::HostFiles files_;
    std::vector<fabricshm::Package> packages_;
    std::vector<Ticks> before_;  // by package
};

}  // namespace fabricd
