// The whole page for Prometheus: what the daemon holds, and what it sampled.

#pragma once

#include <string>

#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// docs/telemetry.md lists the metrics.
std::string metrics_page(const Snapshot& snapshot, const Sample& sample);

}  // namespace fabricd
