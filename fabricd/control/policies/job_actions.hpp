// Job actions: what the loop can do about one job, in the order in which it asks for it, and what
// holds for the job afterwards.

#pragma once

#include <optional>
#include <span>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/policies/state.hpp"

namespace fabricd {

/// How an action about one job comes about.
struct JobAction {
    ActionKind kind;
    std::optional<Decision> (*propose)(const JobState& job, const ControlConfig& config);
};

/// In the order of what they are worth; the first that has something to say is the only one.
std::span<const JobAction> job_actions() noexcept;

/// `action`, which is one of a job, is decided: what the job's directives say from now on.
/// `is_undo`: it is the rollback of one of its kind.
void apply(JobState& job, const Action& action, bool is_undo);

}  // namespace fabricd
