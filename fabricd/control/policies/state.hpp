// State: the smoothed snapshot that decisions are made from. Made of windows, by one thread.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/policies/guards.hpp"
#include "fabricd/control/policies/trial.hpp"
#include "fabricd/control/stages/cost_model.hpp"
#include "fabricd/control/stages/gradients.hpp"
#include "fabricd/control/stages/imbalance.hpp"
#include "fabricd/control/stages/smoothing.hpp"

namespace fabricd {

/// What is known of one rank. Survives its group: a shrunk group has the same sessions.
struct RankState {
    std::uint64_t session = 0;
    std::int32_t rank = -1;
    Ewma sample_s;             // computing, per sample: 1 / C
    double fixed_samples = 0;  // and so many more in each step, as it seems (cost_model.hpp)
    CostProbe probe;
    Ewma comm_s;  // per step
    GradientMetrics gradients;
    double samples = 0;    // per step, in the last window
    double compute_s = 0;  // per step, in the last window
    double share = 0;      // of the job's samples in the last window
    std::uint32_t queue = 0;
    std::uint32_t sync_interval = 0;
    std::uint64_t directive_serial = 0;
    std::uint64_t serial_sent = 0;  // the last one that we wrote into its page, in any job
    bool drained = false;           // by a decision: its share is 0 on purpose
    std::int64_t drained_windows = 0;
    bool returned = false;  // from being drained, and not yet known to be well again
    int relapses = 0;       // times that it was still slow when it was tried again, in a row
    bool alarmed = false;
    std::int64_t slow_windows = 0;
    DeviceFaults faults = 0;           // of its device, in the last window
    DeviceFaults faults_reported = 0;  // those that an alarm was about
    std::int64_t fault_windows = 0;    // in a row
    bool changed = false;              // its speed, in this window
    double sample_s_before = 0;        // when it changed: what it was

    /// What computing so many samples takes, in a step.
    double compute_of(double step_samples) const noexcept {
        return sample_s.mean * (step_samples + fixed_samples);
    }
    /// C: samples per second when computing; 0: not known or drained.
    double speed() const noexcept {
        return !drained && sample_s.known() && sample_s.mean > 0 ? 1 / sample_s.mean : 0;
    }
};

/// Weights of a new value, by control.half_life. Made once: they cost an exponential each.
struct SmoothingWeights {
    explicit SmoothingWeights(const ControlConfig& config);
    double level;
    double slope;  // slopes are differences of noisy levels and need twice as long
};

/// Whether a series gets worse: its slope, over a half-life, against how far it jumps from one
/// value to the next.
struct LossWatch {
    Trend trend;
    double scatter = 0;
    double last = 0;
    Hysteresis worsens;

    void update(double loss, const ControlConfig& config, const SmoothingWeights& weights);
};

/// One job.
struct JobState {
    std::uint64_t arena = 0, group = 0;
    std::int32_t world = 0;
    std::vector<RankState> ranks;  // by rank

    std::int64_t silent = 0;   // windows without news in a row
    std::int64_t windows = 0;  // with news
    bool fresh = false;        // this window had news of all ranks
    double batch = 0;          // samples of all ranks in a step
    Ewma step_s;
    Ewma comm_s;     // per step: the least of all ranks, which is the transfer itself
    Ewma objective;  // samples/s times 1 - I
    double objective_now = 0;
    double imbalance_now = 0;
    double scatter = 0;  // of a rank's computing from window to window, relative
    Hysteresis unbalanced;
    // Windows in which rank 0 acts on the last directive; what a rank's speed does in the first of
    // them may be due to that.
    std::int64_t acted = 0;
    std::int64_t doubtful = 0;   // windows in a row that were not judged
    bool is_size_said = false;   // people know that it is too large for a directive
    bool is_probing = false;     // the shares were changed: what a step costs is learned from it
    bool has_learned = false;    // in this window
    bool has_hesitated = false;  // in the window before: only a part of the speeds was known
    LossWatch loss;
    Ewma noise_scale;  // samples

    // What holds by decision; empty or 0: never said anything.
    std::vector<double> shares;
    std::vector<double> units;
    std::uint32_t sync_interval = 0;
    std::uint64_t serial = 0;       // of the last directive; 0: this daemon has given none
    std::uint64_t serial_seen = 0;  // the largest that a session of the job knows of
    Trial trial;

    bool is_stale(const ControlConfig& config) const noexcept {
        return silent > config.silent_windows;
    }
    /// Rank 0 acts on the last directives: it reads them and passes them on, so that all ranks take
    /// them over at the same step, and the others' pages may say nothing of it.
    bool in_force() const noexcept;
    /// Steps between two synchronisations now.
    std::uint32_t interval() const noexcept;
    /// Of the ranks that have work, smoothed; nothing when some speed is not known.
    std::optional<Imbalance> imbalance() const;
    /// The imbalance that is there for certain: what is left of the smoothed one when the slowest
    /// rank is as much faster as chance may have made the slowest of so many look.
    double certain_imbalance() const;
    /// A rank's speed became another one in this window, or may be about to: its last value is far
    /// off.
    bool any_changed() const noexcept;
    bool any_suspect() const noexcept;
    /// Shares or units are about to change: what the ranks do now is set against what they do then.
    void begin_probe();
    /// The ranks of `window` are those of the state, session by session.
    bool is_of(const JobWindow& window) const noexcept;
    /// Begins the means again by which actions are judged: what was measured before belongs to
    /// other shares, units or intervals.
    void forget_pace();
};

/// A job that is seen for the first time. `job` has to be whole.
JobState new_job(const JobWindow& job);

/// Takes a window into the state. The state is as before, but older, when the window has no news of
/// every rank: a decision must not mix moments.
void observe(JobState& state, const JobWindow& job, const ControlConfig& config,
             const SmoothingWeights& weights);

}  // namespace fabricd
