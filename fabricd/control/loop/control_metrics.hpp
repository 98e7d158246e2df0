// The control loop's counters as Prometheus text.

#pragma once

#include <string>

#include "fabricd/control/loop/loop.hpp"

namespace fabricd {

/// Complete lines, to be put behind other metrics.
std::string control_metrics(const LoopCounters& counters);

}  // namespace fabricd
