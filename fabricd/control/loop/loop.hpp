// Loop: windows in, decisions out. A state machine without clock, thread or system call, so that
// the daemon, the tests, the simulator and a replay of the journal run the same code.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/loop/host_loop.hpp"
#include "fabricd/control/policies/state.hpp"

namespace fabricd {

/// What the ranks of a job shall do from now on: all of it, not a difference.
struct Directive {
    std::uint64_t serial = 0;
    std::uint64_t decision = 0;
    std::uint64_t arena = 0, group = 0;
    std::int32_t world = 0;
    std::vector<std::uint64_t> sessions;  // by rank
    std::vector<double> shares;           // by rank; empty: not set
    std::vector<double> units;            // by rank; empty: not set
    std::uint32_t sync_interval = 0;      // 0: not set
};

/// What a window led to, in the order in which it happened.
struct TickResult {
    std::vector<DecisionOutcome> outcomes;  // of earlier decisions
    std::vector<Decision> decisions;
    std::vector<Directive> directives;  // that carry decisions out
    std::vector<std::string> notes;     // lines for people, each once
};

/// For the metrics.
struct LoopCounters {
    std::uint64_t windows = 0;
    std::uint64_t jobs = 0;                               // now
    std::uint64_t stale_jobs = 0;                         // now; nothing is decided about them
    std::uint64_t alarmed_ranks = 0;                      // now
    std::array<std::uint64_t, kActionKinds> decisions{};  // by kind
    std::array<std::uint64_t, 7> outcomes{};              // by outcome
    // Of the loop's surroundings, which it leaves at 0.
    std::uint64_t shards_left_out = 0;  // now
    std::uint64_t not_journalled = 0;   // records that were too large
};

/// For one thread. A tick costs one pass over the ranks: about 0.1 us each, and nothing is
/// allocated for a job about which nothing is decided.
class Loop {
  public:
    /// `last_id` is that of the last decision in the journal. mode "off" is not for the loop: a
    /// caller that wants nothing decided does not tick.
    explicit Loop(ControlConfig config, std::uint64_t last_id = 0);
    Loop(const Loop&) = delete;  // parts of it look at its settings
    Loop& operator=(const Loop&) = delete;

    /// Takes a window. With mode "dry-run" decisions are made and reported, but have no directives,
    /// and nothing is expected to come of them.
    TickResult tick(const Window& window);

    /// An actuator could not carry out a decision of the last tick, which may be one that takes
    /// another one back. What to journal.
    DecisionOutcome failed(std::uint64_t decision, const std::string& why);

    /// Whether there is anything in the window that something could be decided about. One in which
    /// there is not is to the loop as empty as Window{}, but for its number.
    bool watches(const Window& window) const noexcept;

    const ControlConfig& config() const noexcept { return config_; }
    const LoopCounters& counters() const noexcept { return counters_; }

  private:
    using JobKey = std::pair<std::uint64_t, std::uint64_t>;  // arena, group

    void tick_job(JobState& job, const JobWindow& window, TickResult& result);
    void judge_job(JobState& job, TickResult& result);
    void answer_speed_change(JobState& job, TickResult& result);
    static void resume_job(JobState& job);
    static std::pair<double, double> outlook(const JobState& job, const BatchShares& shares);
    static void promise_again(JobState& job, bool is_same);
    static bool is_own_doing(const JobState& job);
    void decide_job(JobState& job, TickResult& result);
    bool is_too_large(JobState& job, TickResult& result) const;
    void undo_job(JobState& job, TickResult& result);
    void take(JobState& job, Decision decision, TickResult& result);
    void direct(JobState& job, Decision& decision, TickResult& result);
    std::optional<DecisionOutcome> end_failed(std::uint64_t decision, const std::string& why);
    void tell(Decision decision, TickResult& result);
    void tell(const DecisionOutcome& outcome, TickResult& result);
    void forget_ended(const Window& window);
    JobState* job_of(const JobWindow& window);
    void remember(const JobState& job);
    bool allows(ActionKind kind) const { return allowed_[static_cast<std::size_t>(kind)]; }
    bool is_dry() const { return config_.mode != "on"; }

    ControlConfig config_;
    SmoothingWeights weights_;
    std::uint64_t last_id_;
    std::uint64_t last_serial_ = 0;
    std::uint64_t window_ = 0;
    std::map<JobKey, JobState> jobs_;
    // Of jobs that ended: a group that shrank goes on with the same sessions, whose speeds are
    // known.
    std::unordered_map<std::uint64_t, RankState> remembered_;
    HostLoop host_;
    std::array<bool, kActionKinds> allowed_{};  // by control.actions
    LoopCounters counters_;
};

}  // namespace fabricd
