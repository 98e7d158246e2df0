// Decisions of the control loop as text for people and as JSON for programs.

#pragma once

#include <string>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/loop/replay.hpp"
#include "fabricd/ctl/json.hpp"

namespace fabricd {

/// A table, one line each.
/// Values keep the decision's own units (shares S113, bytes S322, steps S313); text rounds them,
/// JSON does not.
std::string decisions_text(const std::vector<Decision>& decisions);

/// Stage by stage: what went in, what came out, what was promised and what came of it.
std::string why_text(const Decision& decision);

/// One of {"decisions": [...]}.
Json json_of(const Decision& decision);

/// {"decisions": [...]} in one line.
std::string decisions_json(const std::vector<Decision>& decisions);

/// What a replay would have done otherwise. `windows`: how many it covers.
std::string replay_text(const std::vector<ReplayDifference>& differences, std::size_t windows);
std::string replay_json(const std::vector<ReplayDifference>& differences, std::size_t windows);

}  // namespace fabricd
