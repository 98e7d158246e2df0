// How long an allocation that finds no room waits for some before it fails: for another process to
// free, or for the control loop to make the quota larger.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/limits_page.hpp"

namespace fabricshm::cuda {

/// Longer than a person watches a program that stands still.
inline constexpr Duration kMaxGrantWait = std::chrono::minutes(10);

/// What $FABRIC_VGPU_WAIT asks for: "0s" to "10min", with a unit. Nothing: it asks for nothing that
/// can be made out.
std::optional<Duration> grant_wait_from(const char* text);

/// Of one vGPU of this process. Thread-safe. Allocators take a refusal for the sign to give back
/// what they keep: one that had to wait for each of them would stand still most of the time. So
/// after a wait in vain there is none for fifteen times as long, or until the limits change.
class GrantWait {
  public:
    /// `asked`: instead of what the daemon says.
    explicit GrantWait(std::optional<Duration> asked = {}) noexcept : asked_(asked) {}

    /// What a refused allocation waits at `now`; 0: it does not.
    Duration length(TimePoint now, const Limits& limits) const noexcept;

    /// A wait that began under these limits has ended at `now`, with nothing.
    void was_in_vain(TimePoint now, Duration length, const Limits& limits) noexcept;

    /// What a quota may become while a process waits; without waiting, what it is.
    std::uint64_t most_bytes(const Limits& limits) const noexcept;

  private:
    Duration configured(const Limits& limits) const noexcept;

    std::optional<Duration> asked_;
    // Two words that are not read together: a thread that sees one of them too early or too late
    // waits once more, or once less.
    std::atomic<std::int64_t> rests_until_ns_{0};
    std::atomic<std::uint64_t> rests_at_serial_{0};
};

}  // namespace fabricshm::cuda
