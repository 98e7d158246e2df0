// A Sample as Prometheus metrics. docs/telemetry.md lists them.

#pragma once

#include "fabricd/telemetry/metrics_text.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// Appends the families of sessions, devices, paths and of the sampler itself. A family without
/// samples is left out.
void add_sample_metrics(const Sample& sample, MetricsText& text);

}  // namespace fabricd
