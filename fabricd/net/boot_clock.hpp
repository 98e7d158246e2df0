// The clock of leases: it goes on while a machine is suspended, as the clock of the cluster store
// does.

#pragma once

#include <chrono>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// CLOCK_BOOTTIME. With CLOCK_MONOTONIC, a virtual machine that was suspended for an hour would
/// find its lease as fresh as before, long after the others have given it up.
struct BootClock {
    using duration = fabricshm::Duration;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<BootClock>;
    static constexpr bool is_steady = true;

    static time_point now() noexcept;
};

using BootTime = BootClock::time_point;

}  // namespace fabricd
