// Quota plan: what the proposals about quotas have in common: what a user of a divided whole asks
// for and keeps, and how a promise that comes back is a decision. For host_policy and pool_policy.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/stages/lending.hpp"

namespace fabricd {

/// A user with sound numbers, as lending sees it. It asks when it was refused memory, and below its
/// promise already when its use fills more than control.quota_filled of its quota: for what would
/// be filled just right, at most control.quota_step of its quota at once.
Holder holder_of(const QuotaWindow& user, const ControlConfig& config);

/// What of `more` a user asks for, that would be filled just right with it.
double asks_of(const QuotaWindow& user, double more, const ControlConfig& config);

/// Whether with `after` some holder has all of its promise again, or so much more of it that it is
/// worth deciding about: what a taker frees byte by byte is no decision each.
bool is_worth_returning(std::span<const Holder> holders, const std::vector<double>& after,
                        double gain);

/// `decision` gives promises back: nothing has to show that it was right, so that it is done and
/// not on probation. Nothing when it changes nothing.
std::optional<Decision> as_return(Decision decision);

/// Changes are carried out in their order: what shrinks comes first, so that there is room for what
/// grows. `before` and `after` are whole numbers.
template <typename Value>
void add_change(std::vector<NamedChange<Value>>& changes, const std::string& name, double before,
                double after) {
    const auto at = after < before ? changes.begin() : changes.end();
    changes.insert(at, {name, whole_of<Value>(before), whole_of<Value>(after)});
}

}  // namespace fabricd
