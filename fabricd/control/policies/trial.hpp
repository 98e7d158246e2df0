// Trial: the actions on one subject (a job, a device, the shards), one at a time: what is on
// probation, and which kinds have to wait after one that was undone.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/policies/guards.hpp"

namespace fabricd {

/// Counts the windows of its subject. For one thread.
class Trial {
  public:
    /// A window has passed.
    void pass() noexcept { ++window_; }

    /// Nothing is on probation and this kind does not have to wait.
    bool may(ActionKind kind) const noexcept;

    /// Puts `decision` on probation, but for its facts: those are for people. `noise` is the
    /// objective's usual relative scatter.
    void begin(const Decision& decision, double noise);

    /// A window's objective. What came of it when the probation ends with this window: then nothing
    /// is on probation any more. After kUndone the kind waits `cool_down` windows, twice as long
    /// after each further one in a row (at most 16 times); after kUnjudged for want of a job once.
    std::optional<DecisionOutcome> judge(double objective, bool in_force, std::int64_t length,
                                         std::int64_t cool_down);

    /// Ends the probation without a verdict: something else changed, which `reason` names.
    std::optional<DecisionOutcome> interrupt(const char* reason);

    /// It goes on with other figures: see Probation.
    void promise_again(double without, double with, bool is_same) noexcept;
    int promised_anew() const noexcept { return promised_anew_; }

    /// What was interrupted, or was not obeyed in time, may still hold: it goes on probation again,
    /// once, and what is said about it then is the last word. False when there is no such thing.
    bool can_resume() const noexcept { return !running() && interrupted_ != 0; }
    void resume(double without, double with) noexcept;
    /// Something else has taken its place.
    void forget_interrupted() noexcept { interrupted_ = 0; }

    /// The kind need not wait any longer: what was undone was so under other conditions.
    void forgive(ActionKind kind) noexcept;

    /// Ends the probation as one that made things worse, before its time.
    std::optional<DecisionOutcome> give_up(const char* reason, double objective,
                                           std::int64_t cool_down);

    /// Ends the probation: the action could not be carried out, as `why` says. The kind waits.
    DecisionOutcome fail(const std::string& why, std::int64_t cool_down);

    /// What was decided about the name at `at` has no part in the probation any more.
    void drop(std::size_t at);

    /// The kind waits so many windows.
    void wait(ActionKind kind, std::int64_t windows) noexcept;

    bool running() const noexcept { return probation_.running(); }
    const Probation& probation() const noexcept { return probation_; }
    /// The last decision that was on probation: what an undoing has to reverse.
    const Decision& decision() const noexcept { return decision_; }

  private:
    DecisionOutcome end(Outcome outcome, const char* reason, double measured);
    void wait_after_undoing(std::int64_t cool_down) noexcept;

    std::int64_t window_ = 0;
    std::uint64_t interrupted_ = 0;  // the decision that can be resumed
    int promised_anew_ = 0;          // times that the one on probation began again
    bool is_resumed_ = false;        // the one on probation was interrupted before
    std::array<std::int64_t, kActionKinds> not_before_{};
    std::array<std::uint8_t, kActionKinds> undone_{};  // in a row
    Probation probation_;
    Decision decision_;
};

}  // namespace fabricd
