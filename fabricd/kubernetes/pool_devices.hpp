// PoolDevices: the GiB of fabricd's pool as the devices that the kubelet counts.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// 64 TiB. Their list is 1.7 MB; clients of gRPC take 4 MB unless they say otherwise.
inline constexpr int kMaxPoolDevices = 65536;

/// What of the daemon matters here.
struct PoolState {
    fabricshm::Bytes capacity = 0;
    bool is_draining = false;  // takes no new arenas
};

struct PoolDevice {
    std::string id;  // "gib-0"
    bool is_healthy = false;
};

using DeviceIds = std::vector<std::string>;

/// Device N is the pool's Nth GiB in number only: any GiB is as good as any other, and the daemon
/// places the bytes. A device that was offered once stays in the list, so that one in use is
/// reported as unhealthy and not as gone. Not thread-safe.
class PoolDevices {
  public:
    /// `reserve` bytes of the pool are not offered.
    explicit PoolDevices(fabricshm::Bytes reserve) noexcept : reserve_(reserve) {}

    /// Takes what the daemon says; nullopt: it does not answer. True when the list is another one
    /// now.
    bool update(const std::optional<PoolState>& state);

    /// With their health, in the order of their numbers.
    std::vector<PoolDevice> list() const;
    /// That were ever offered.
    int count() const noexcept { return offered_; }
    /// That can be allocated now: those with the lowest numbers.
    int healthy() const noexcept { return healthy_; }

    /// Whether each container of one request may have its devices. kInvalid: an id that is none of
    /// ours, no ids, or one device twice. kDaemon: the daemon does not back one of them now.
    fabricshm::Result<void> check_allocation(std::span<const DeviceIds> containers) const;

    /// `size` of `available`, `must_include` first, then the lowest numbers: when a pool gets
    /// smaller, the highest ones go. kInvalid when that can't be.
    fabricshm::Result<DeviceIds> preferred(const DeviceIds& available,
                                           const DeviceIds& must_include, std::int64_t size) const;

  private:
    fabricshm::Result<int> number_of(const std::string& id) const;
    fabricshm::Result<std::vector<int>> numbers_of(const DeviceIds& ids) const;

    fabricshm::Bytes reserve_;
    int offered_ = 0;
    int healthy_ = 0;
};

}  // namespace fabricd
