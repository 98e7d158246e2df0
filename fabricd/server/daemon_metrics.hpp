// The whole page for Prometheus: what the daemon holds, and what it sampled.

#pragma once

#include <string>

#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// The page in Prometheus' text format 0.0.4; docs/telemetry.md lists the metrics. Costs a pass
/// over arenas and sessions.
std::string metrics_page(const Snapshot& snapshot, const Sample& sample);

}  // namespace fabricd
