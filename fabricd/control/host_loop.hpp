// HostLoop: the part of the loop that is about the host and not about one job: quotas and compute
// shares of vGPUs, quotas of the pool, homes of shards. Part of Loop; no clock, no thread.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/decision.hpp"
#include "fabricd/control/shard_watch.hpp"
#include "fabricd/control/smoothing.hpp"
#include "fabricd/control/state.hpp"
#include "fabricd/control/trial.hpp"
#include "fabricd/control/window.hpp"

namespace fabricd {

/// What the jobs of the host get done together: what actions beyond one job are judged by.
class HostPace {
  public:
    void begin() noexcept;
    /// A job that is not stale. One whose steps are longer than a window counts with what its last
    /// window with news said, or the sum would jump with every step that ends.
    void add(const JobState& job) noexcept;
    /// The loop has changed something about a job, or taken it back: what the jobs do now is not
    /// due to anything else alone.
    void stir() noexcept { stirred_ = true; }
    void end(double weight);

    double objective() const noexcept { return sum_; }
    bool fresh() const noexcept { return fresh_; }
    bool stirred() const noexcept { return stirred_; }
    std::uint64_t jobs() const noexcept { return jobs_; }  // tells one set of jobs from another
    /// Usual relative scatter of the objective.
    double noise(double least) const noexcept;

  private:
    double sum_ = 0;
    bool fresh_ = false, stirred_ = false;
    std::uint64_t jobs_ = 0, jobs_before_ = 0;
    Ewma usual_;
};

/// For one thread.
class HostLoop {
  public:
    struct Told {
        std::vector<DecisionOutcome> outcomes;  // of earlier decisions
        std::vector<Decision> decisions;
    };

    explicit HostLoop(const ControlConfig& config) : config_(config) {}

    /// Of the window under way; tick() ends it.
    HostPace& pace() noexcept { return pace_; }

    /// One action at a time on each ground: a GPU, the pool, the shards. `last_id` counts on.
    Told tick(const Window& window, double weight, std::uint64_t& last_id);

    /// The decision that is on probation could not be carried out; nothing if none of these is it.
    std::optional<DecisionOutcome> failed(std::uint64_t decision, const std::string& why);

  private:
    struct Ground {
        Trial trial;
        std::uint64_t jobs = 0;  // that there were when the action began
    };
    enum class Progress { kUnderWay, kInForce, kLost };

    static Progress progress_of(const Decision& decision, const PlacementWindow& now);
    bool may(const Ground& ground, ActionKind kind) const;
    bool judge(Ground& ground, Progress progress, Told& result, std::uint64_t& last_id);
    void begin(Ground& ground, Decision decision, Told& result, std::uint64_t& last_id);
    void tick_vgpus(const Window& window, Told& result, std::uint64_t& last_id);
    void tick_pool(const Window& window, Told& result, std::uint64_t& last_id);
    void tick_shards(const Window& window, double weight, Told& result, std::uint64_t& last_id);

    const ControlConfig& config_;  // the loop's
    HostPace pace_;
    std::map<std::string, Ground> gpus_;  // by name
    Ground pool_;
    Ground shards_;
    ShardWatch watch_;
};

}  // namespace fabricd
