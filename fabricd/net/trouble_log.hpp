// Which troubles are worth a line in the log, of those that are met again and again.

#pragma once

#include <map>
#include <string>

#include "fabricd/net/boot_clock.hpp"

namespace fabricd {

/// Each text at its first time, and then once a minute at most, also when others, or times without
/// any, come in between. For one thread.
class TroubleLog {
  public:
    /// Whether to log it now.
    bool is_due(const std::string& text, BootTime now);

    static constexpr fabricshm::Duration kAgain = std::chrono::minutes(1);

  private:
    std::map<std::string, BootTime> logged_;  // those of the last minute
};

}  // namespace fabricd
