#include "fabricd/control/policies/trial.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

// Both in windows with news: a job that stands still does not cool down either.
bool Trial::may(ActionKind kind) const noexcept {
    return !running() && window_ >= not_before_[static_cast<std::size_t>(kind)];
}

void Trial::begin(const Decision& decision, double noise) {
    FABRIC_CHECK(!running());        // one at a time: of two no verdict could say which did it
    FABRIC_CHECK(decision.id != 0);  // 0 is what running() takes for nothing
    // What it replaced is what a rollback needs. Not a copy of it all: its facts are most of it,
    // and a window in which every job decides would spend its time on copying them.
    probation_ = Probation{};
    probation_.decision = decision.id;
    probation_.before = decision.objective;
    probation_.promised = decision.promised;
    probation_.noise = noise;
    decision_.id = decision.id;
    decision_.window = decision.window;
    decision_.action = decision.action;
    decision_.arena = decision.arena;
    decision_.group = decision.group;
    decision_.device = decision.device;
    decision_.objective = decision.objective;
    decision_.promised = decision.promised;
    decision_.serial = decision.serial;
    interrupted_ = 0;
    promised_anew_ = 0;
    is_resumed_ = false;
}

void Trial::promise_again(double without, double with, bool is_same) noexcept {
    probation_.promise_again(without, with, is_same);
    promised_anew_ += is_same ? 0 : 1;
}

void Trial::resume(double without, double with) noexcept {
    FABRIC_CHECK(can_resume());
    const double noise = probation_.noise;
    probation_ = Probation{};
    probation_.decision = interrupted_;
    probation_.noise = noise;
    probation_.promise_again(without, with, true);
    interrupted_ = 0;
    is_resumed_ = true;
}

void Trial::forgive(ActionKind kind) noexcept {
    auto& not_before = not_before_[static_cast<std::size_t>(kind)];
    not_before = std::min(not_before, window_);
}

std::optional<DecisionOutcome> Trial::judge(double objective, bool in_force, std::int64_t length,
                                            std::int64_t cool_down) {
    if (!running()) return std::nullopt;
    switch (probation_.update(objective, in_force, length)) {
        case Probation::Verdict::kRunning:
            return std::nullopt;
        case Probation::Verdict::kKept:
            undone_[static_cast<std::size_t>(kind_of(decision_))] = 0;
            return end(Outcome::kKept, "as good as promised, but for the noise", probation_.mean());
        case Probation::Verdict::kWorse:
            wait_after_undoing(cool_down);
            return end(Outcome::kUndone, "worse than promised by more than the noise",
                       probation_.mean());
        case Probation::Verdict::kIgnored:
            // Asking again at once would be ignored again.
            wait(kind_of(decision_), cool_down);
            return interrupt("it has not come into force");
    }
    return std::nullopt;
}

std::optional<DecisionOutcome> Trial::interrupt(const char* reason) {
    if (!running()) return std::nullopt;
    interrupted_ = is_resumed_ ? 0 : probation_.decision;
    return end(Outcome::kUnjudged, reason, probation_.mean());
}

std::optional<DecisionOutcome> Trial::give_up(const char* reason, double objective,
                                              std::int64_t cool_down) {
    if (!running()) return std::nullopt;
    wait_after_undoing(cool_down);
    return end(Outcome::kUndone, reason, objective);
}

DecisionOutcome Trial::fail(const std::string& why, std::int64_t cool_down) {
    wait(kind_of(decision_), cool_down);
    DecisionOutcome outcome = end(Outcome::kFailed, "", 0);
    outcome.reason = why;
    return outcome;
}

void Trial::drop(std::size_t at) {
    drop_change(decision_.action, at);
}

// The same inputs lead to the same proposal: without this an action that only looks good would be
// done and undone for ever.
void Trial::wait_after_undoing(std::int64_t cool_down) noexcept {
    constexpr std::uint8_t kDoublings = 4;
    FABRIC_CHECK(cool_down >= 0);
    std::uint8_t& times = undone_[static_cast<std::size_t>(kind_of(decision_))];
    FABRIC_CHECK(times <= kDoublings);
    wait(kind_of(decision_), cool_down << times);
    times = std::min<std::uint8_t>(times + 1, kDoublings);
}

void Trial::wait(ActionKind kind, std::int64_t windows) noexcept {
    not_before_[static_cast<std::size_t>(kind)] = window_ + windows;
}

DecisionOutcome Trial::end(Outcome outcome, const char* reason, double measured) {
    // The probation and the decision that a rollback starts from are one.
    FABRIC_CHECK(running() && probation_.decision == decision_.id);
    probation_.decision = 0;
    return {decision_.id, 0, outcome, measured, reason};
}

}  // namespace fabricd
