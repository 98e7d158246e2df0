// Job actions: what the loop can do about one job, in the order in which it asks for it, and what
// holds for the job afterwards.

#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <optional>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/policies/job_policy.hpp"
#include "fabricd/control/policies/slow_ranks.hpp"
#include "fabricd/control/policies/state.hpp"

namespace fabricd {

/// How an action about one job comes about.
struct JobAction {
    ActionKind kind;
    std::optional<Decision> (*propose)(const JobState& job, const ControlConfig& config);
};

/// In the order of what they are worth; the first that has something to say is the only one.
inline constexpr JobAction kJobActions[] = {{ActionKind::kDrain, propose_drain},
                                            {ActionKind::kReturn, propose_return},
                                            {ActionKind::kWorkUnits, propose_units},
                                            {ActionKind::kBatchShares, propose_shares},
                                            {ActionKind::kSyncInterval, propose_interval}};

static_assert(
    [] {
        for (const ActionInfo& info : kActions) {
            std::size_t rows = 0;
            for (const JobAction& action : kJobActions) rows += action.kind == info.kind ? 1 : 0;
            if (rows != (info.scope == ActionScope::kJob ? 1 : 0)) return false;
        }
        return true;
    }(),
    "each action of a job has one row");

/// `action`, which is one of a job, is decided: what the job's directives say from now on.
/// `is_undo`: it takes back one of its kind.
void apply(JobState& job, const Action& action, bool is_undo);

}  // namespace fabricd
