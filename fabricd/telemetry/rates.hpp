// Rates of a session: from the counters of two samples to numbers per second.

#pragma once

#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// Brings `session.rates` up to date if it has ended a step since they were last computed; a step
/// that takes long leaves them as they were, and staleness says the rest. Counters that fell (a
/// hostile page) give zeros, never a negative or infinite rate.
void update_rates(SessionSample& session) noexcept;

}  // namespace fabricd
