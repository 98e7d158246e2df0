// Pool policy: how the pool is divided among the devices of the device file, whose quotas say how
// much their sessions may hold of it. Pure, like the host policy.

#pragma once

#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"

namespace fabricd {

/// S411 to S413: quotas of the devices. What all quotas are together stays what the administrator
/// made it. A device that was refused memory gets what others don't use and lend (lending.hpp);
/// where several ask, in S412's ratio, by what each holds and was refused (D), its priority (P) and
/// its speed (Q). No quota grows by more than control.quota_step at once.
std::optional<Decision> propose_pool_quotas(const PoolWindow& pool, const ControlConfig& config);

/// The same, for devices that ask and have less than their promise: all of it at once, as far as
/// others don't use it. Nothing to be judged.
std::optional<Decision> propose_pool_returns(const PoolWindow& pool, const ControlConfig& config);

}  // namespace fabricd
