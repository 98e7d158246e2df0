// At FABRIC_LOG=debug: which way operations go, logged once for each kind of them.

#pragma once

#include "libfabricshm/collective/operation.hpp"

namespace fabricshm {

/// One line for an operation of this signature, group and way that the process has not logged yet.
/// Call it when a way was chosen, and not where a kept one is taken again: at other levels this is
/// one load. Any thread.
void log_route(const Operation& operation, const char* way) noexcept;

}  // namespace fabricshm
