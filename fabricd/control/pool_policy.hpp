// Pool policy: how the pool is divided among the devices of the device file, whose quotas say how
// much their sessions may hold of it. Pure, like the host policy.

#pragma once

#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/decision.hpp"
#include "fabricd/control/window.hpp"

namespace fabricd {

/// S411 to S413: quotas of the devices, when sessions of one were refused memory. What all quotas
/// are together stays what the administrator made it: S412's ratio says how it is divided, by what
/// each device holds and was refused (D), its priority (P) and its speed (Q). Only what nobody
/// holds is divided; who was refused memory does not get less, and no quota changes by more than
/// control.quota_step at once.
std::optional<Decision> propose_pool_quotas(const PoolWindow& pool, const ControlConfig& config);

}  // namespace fabricd
