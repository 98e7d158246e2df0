// Replay: the windows of a journal through the loop again, with other settings.
//
// The windows stay what they were: a decision that is made now and was not made then changes
// nothing about what the job did afterwards. So a replay shows which decisions would have been made
// on the way that was gone, and its first difference is worth more than its last. What would have
// come of them, the simulator can show.

#pragma once

#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/decision_journal.hpp"

namespace fabricd {

/// What the loop decides on these windows; it starts again at each start of the daemon. What was
/// refused when it was to be carried out is refused again, where it is decided in the same window.
std::vector<Decision> replay(const JournalStory& story, const ControlConfig& config);

/// Decisions of one run next to those of another.
struct ReplayDifference {
    enum class Side { kBoth, kOnlyThen, kOnlyNow };
    Side side = Side::kBoth;
    const Decision* then = nullptr;
    const Decision* now = nullptr;
    bool same_values = false;  // of kBoth
};

/// Pairs decisions that agree in window, kind and subject; in the order of windows. Points into the
/// arguments.
std::vector<ReplayDifference> compare(const std::vector<Decision>& then,
                                      const std::vector<Decision>& now);

}  // namespace fabricd
