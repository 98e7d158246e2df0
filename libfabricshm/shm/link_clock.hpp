// LinkClock: the time that the model of a machine's links lives by.

#pragma once

#include <cstdint>

namespace fabricshm {

/// Nanoseconds that all processes of the host share. Tests give one that they move themselves.
class LinkClock {
  public:
    virtual ~LinkClock() = default;

    virtual std::uint64_t now() noexcept = 0;

    /// Returns at `until` or a little later, with the time that it is then.
    virtual std::uint64_t wait(std::uint64_t until) noexcept = 0;

    /// What one now() takes: the meter ends its waits earlier by as much.
    virtual std::uint64_t cost() const noexcept { return 0; }

    /// CLOCK_MONOTONIC. Reads the processor's time stamp between readings of the system's clock
    /// where that is what the kernel itself counts with: ten nanoseconds instead of up to a
    /// hundred. Thread-safe.
    static LinkClock& real() noexcept;
};

}  // namespace fabricshm
