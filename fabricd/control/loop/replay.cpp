#include "fabricd/control/loop/replay.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "fabricd/control/loop/loop.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr double kSame = 1e-9;  // the same code on the same numbers; only printing could differ

// Names count as well: a quota of another vGPU is another decision.
bool same_values(const Decision& a, const Decision& b) {
    const ActionFrame one = frame_of(a.action), other = frame_of(b.action);
    return one.names == other.names &&
           std::equal(one.after.begin(), one.after.end(), other.after.begin(), other.after.end(),
                      [](double x, double y) {
                          return std::abs(x - y) <= kSame * std::max(1.0, std::abs(x));
                      });
}

// What it is about and whether it reverses something; ids differ as soon as one decision more is
// made.
auto subject_of(const Decision& decision) {
    return std::tuple(kind_of(decision), decision.arena, decision.group, decision.device,
                      decision.undoes != 0);
}

/// One pass over a journal: what the controller was, without a clock and without actuators.
class Replayer {
  public:
    Replayer(const JournalStory& story, const ControlConfig& config)
        : story_(story), config_(config) {}

    std::vector<Decision> run() {
        for (std::size_t i = 0; i < story_.windows.size(); ++i) take(i);
        return std::move(decisions_);
    }

  private:
    void take(std::size_t index) {
        const Window& window = story_.windows[index];
        if (begins_anew(index)) {
            loop_.emplace(config_, decisions_.empty() ? 0 : decisions_.back().id);
        } else if (FABRIC_CHECK(last_ != nullptr); !loop_->watches(*last_)) {
            idle(last_->number, window.number);
        }
        last_ = &window;
        TickResult result = loop_->tick(window);
        const std::size_t first = decisions_.size();
        for (Decision& decision : result.decisions) decisions_.push_back(std::move(decision));
        for (const DecisionOutcome& outcome : result.outcomes) end(outcome);
        for (std::size_t i = first; i < decisions_.size(); ++i) fail_as_then(index, decisions_[i]);
    }

    // A file that begins in the middle of a run has settings at its head, too. In journals of older
    // daemons only numbers that begin again show another daemon.
    bool begins_anew(std::size_t index) {
        bool is_start = false;
        bool is_daemons = false;
        for (; start_ < story_.starts.size() && story_.starts[start_].window <= index; ++start_) {
            is_start = true;
            is_daemons = is_daemons || story_.starts[start_].is_daemons;
        }
        return !loop_ || is_daemons || (is_start && story_.windows[index].number <= last_->number);
    }

    // Behind a window with nothing in it the next ones are not in the journal, being as empty; they
    // count for cool-downs all the same. Any other gap is of windows that were too large: it is not
    // known what was in them.
    void idle(std::uint64_t from, std::uint64_t to) {
        // By then every wait is over, the longest of which is 16 cool-downs (see Trial): a number
        // that lies costs no more.
        const auto most =
            static_cast<std::uint64_t>(16 * config_.cool_down + 2 * config_.probation);
        for (std::uint64_t n = from + 1; n < to && n - from <= most; ++n) {
            Window window;
            window.number = n;
            (void)loop_->tick(window);
        }
    }

    void end(const DecisionOutcome& outcome) {
        for (Decision& decision : decisions_) {
            if (decision.id != outcome.id) continue;
            decision.outcome = outcome.outcome;
            decision.measured = outcome.measured;
            decision.outcome_reason = outcome.reason;
        }
    }

    // What the actuators refused then they refuse now: the loop has to hear of it, or it would wait
    // for what never happened.
    void fail_as_then(std::size_t index, const Decision& now) {
        if (now.outcome == Outcome::kNotApplied) return;
        for (; failure_ < story_.failures.size(); ++failure_) {
            if (story_.failures[failure_].window >= index) break;
        }
        for (std::size_t i = failure_; i < story_.failures.size(); ++i) {
            const JournalStory::Failure& failure = story_.failures[i];
            if (failure.window != index) return;
            if (!is_about_the_same(failure.decision, now)) continue;
            return end(loop_->failed(now.id, failure.reason));
        }
    }

    bool is_about_the_same(std::uint64_t then, const Decision& now) const {
        const auto found = std::find_if(story_.decisions.begin(), story_.decisions.end(),
                                        [&](const Decision& other) { return other.id == then; });
        return found != story_.decisions.end() && subject_of(*found) == subject_of(now);
    }

    const JournalStory& story_;
    const ControlConfig& config_;
    std::vector<Decision> decisions_;
    std::optional<Loop> loop_;
    const Window* last_ = nullptr;
    std::size_t start_ = 0, failure_ = 0;  // the next ones
};

}  // namespace

std::vector<Decision> replay(const JournalStory& story, const ControlConfig& config) {
    return Replayer(story, config).run();
}

std::vector<ReplayDifference> compare(const std::vector<Decision>& then,
                                      const std::vector<Decision>& now) {
    std::vector<ReplayDifference> differences;
    std::vector<char> paired(now.size(), 0);
    for (const Decision& old : then) {
        ReplayDifference difference{ReplayDifference::Side::kOnlyThen, &old, nullptr, false};
        // Each at most once: two decisions of one window about one subject are matched by order.
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
