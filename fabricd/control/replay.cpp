#include "fabricd/control/replay.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "fabricd/control/loop.hpp"

namespace fabricd {

namespace {

constexpr double kSame = 1e-9;  // the same code on the same numbers; only printing could differ

// Names count as well: a quota of another vGPU is another decision.
bool same_values(const Decision& a, const Decision& b) {
    return a.after.size() == b.after.size() && a.names == b.names &&
           std::equal(a.after.begin(), a.after.end(), b.after.begin(), [](double x, double y) {
               return std::abs(x - y) <= kSame * std::max(1.0, std::abs(x));
           });
}

// Whom it is about and whether it takes something back; ids differ as soon as one decision more is
// made.
auto subject_of(const Decision& decision) {
    return std::tuple(decision.kind, decision.arena, decision.group, decision.device,
                      decision.undoes != 0);
}

}  // namespace

std::vector<Decision> replay(const JournalStory& story, const ControlConfig& config) {
    std::vector<Decision> decisions;
    std::optional<Loop> loop;
    auto start = story.starts.begin();
    std::uint64_t last_number = 0;
    for (std::size_t i = 0; i < story.windows.size(); ++i) {
        const Window& window = story.windows[i];
        // A file that begins in the middle of a run has settings at its head, too: only numbers
        // that begin again are another daemon.
        const bool is_start = start != story.starts.end() && start->window <= i;
        if (!loop || (is_start && window.number <= last_number)) {
            loop.emplace(config, decisions.empty() ? 0 : decisions.back().id);
        }
        while (start != story.starts.end() && start->window <= i) ++start;
        last_number = window.number;
        TickResult result = loop->tick(window);
        for (Decision& decision : result.decisions) decisions.push_back(std::move(decision));
        for (const DecisionOutcome& outcome : result.outcomes) {
            for (Decision& decision : decisions) {
                if (decision.id != outcome.id) continue;
                decision.outcome = outcome.outcome;
                decision.measured = outcome.measured;
                decision.outcome_reason = outcome.reason;
            }
        }
    }
    return decisions;
}

std::vector<ReplayDifference> compare(const std::vector<Decision>& then,
                                      const std::vector<Decision>& now) {
    std::vector<ReplayDifference> differences;
    std::vector<char> paired(now.size(), 0);
    for (const Decision& old : then) {
        ReplayDifference difference{ReplayDifference::Side::kOnlyThen, &old, nullptr, false};
        // Each at most once: two decisions of one window about one subject are told apart by order.
        for (std::size_t i = 0; i < now.size(); ++i) {
            const bool is_it = paired[i] == 0 && now[i].window == old.window &&
                               subject_of(now[i]) == subject_of(old);
            if (!is_it) continue;
            paired[i] = 1;
            difference = {ReplayDifference::Side::kBoth, &old, &now[i], same_values(old, now[i])};
            break;
        }
        differences.push_back(difference);
    }
    for (std::size_t i = 0; i < now.size(); ++i) {
        if (paired[i] != 0) continue;
        differences.push_back({ReplayDifference::Side::kOnlyNow, nullptr, &now[i], false});
    }
    const auto window_of = [](const ReplayDifference& difference) {
        return difference.then != nullptr ? difference.then->window : difference.now->window;
    };
    std::stable_sort(differences.begin(), differences.end(),
                     [&](const auto& a, const auto& b) { return window_of(a) < window_of(b); });
    return differences;
}

}  // namespace fabricd
