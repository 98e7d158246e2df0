// IncoherentHost: the policy of a rank on an emulated host that shares no caches with others.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "emu/hosts/host_cache.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace emu {

/// What the caches of an emulated host do unasked.
enum class Temper : std::uint8_t {
    kEager,   // nothing: what is not published is never seen, what is not acquired stays old
    kRandom,  // now and then a line near those in use is written back or dropped
    kStrict,  // the same several times at every touch
};

struct HostBehaviour {
    Temper temper = Temper::kRandom;
    std::uint64_t seed = 1;
    // A touch that is left out, to see whether a test notices.
    std::optional<fabricshm::TouchPoint> omitted;
};

class IncoherentHost final : public fabricshm::VisibilityPolicy {
  public:
    /// `cache` is borrowed.
    IncoherentHost(HostCache& cache, const HostBehaviour& behaviour) noexcept;

    void publish(const fabricshm::Access& access) noexcept override;
    void acquire(const fabricshm::Access& access) noexcept override;
    bool coherent() const noexcept override { return false; }

    /// How often the touch was passed in this process, omitted or not.
    std::uint64_t passed(fabricshm::TouchPoint touch) const noexcept;

  private:
    bool enter(const fabricshm::Access& access) noexcept;
    void misbehave(Bytes near) noexcept;
    std::uint64_t random() noexcept;

    HostCache& cache_;
    const HostBehaviour behaviour_;
    std::atomic<std::uint64_t> dice_;
    // Offsets that were touched lately: caches work on what is in use.
    static constexpr std::size_t kRecent = 64;
    std::array<std::atomic<Bytes>, kRecent> recent_{};
    std::array<std::atomic<std::uint64_t>, fabricshm::kTouchCount> passed_{};
};

}  // namespace emu
