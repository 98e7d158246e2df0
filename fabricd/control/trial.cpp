#include "fabricd/control/trial.hpp"

namespace fabricd {

// Both in windows with news: a job that stands still does not cool down either.
bool Trial::may(ActionKind kind) const noexcept {
    return !running() && window_ >= not_before_[static_cast<std::size_t>(kind)];
}

void Trial::begin(const Decision& decision, double noise) {
    // The decision is kept whole: what it replaced is what a rollback needs.
    probation_ = Probation{};
    probation_.decision = decision.id;
    probation_.before = decision.objective;
    probation_.promised = decision.promised;
    probation_.noise = noise;
    decision_ = decision;
}

std::optional<DecisionOutcome> Trial::judge(double objective, bool in_force, std::int64_t length,
                                            std::int64_t cool_down) {
    if (!running()) return std::nullopt;
    switch (probation_.update(objective, in_force, length)) {
        case Probation::Verdict::kRunning:
            return std::nullopt;
        case Probation::Verdict::kKept:
            return end(Outcome::kKept, "as good as promised, but for the noise", probation_.mean());
        case Probation::Verdict::kWorse:
            wait(decision_.kind, cool_down);
            return end(Outcome::kUndone, "worse than promised by more than the noise",
                       probation_.mean());
        case Probation::Verdict::kIgnored:
            // Asking again at once would be ignored again.
            wait(decision_.kind, cool_down);
            return end(Outcome::kUnjudged, "not all ranks have taken it over", 0);
    }
    return std::nullopt;
}

std::optional<DecisionOutcome> Trial::interrupt(const char* reason) {
    if (!running()) return std::nullopt;
    return end(Outcome::kUnjudged, reason, probation_.mean());
}

std::optional<DecisionOutcome> Trial::give_up(const char* reason, double objective,
                                              std::int64_t cool_down) {
    if (!running()) return std::nullopt;
    wait(decision_.kind, cool_down);
    return end(Outcome::kUndone, reason, objective);
}

void Trial::wait(ActionKind kind, std::int64_t windows) noexcept {
    not_before_[static_cast<std::size_t>(kind)] = window_ + windows;
}

DecisionOutcome Trial::end(Outcome outcome, const char* reason, double measured) {
    probation_.decision = 0;
    return {decision_.id, 0, outcome, measured, reason};
}

}  // namespace fabricd
