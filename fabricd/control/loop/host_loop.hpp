// HostLoop: the part of the loop that is about the host and not about one job: quotas and compute
// shares of vGPUs, quotas of the pool, homes of shards. Part of Loop; no clock, no thread.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fabricd/control/control_config.hpp"
#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/policies/cache_policy.hpp"
#include "fabricd/control/policies/promises.hpp"
#include "fabricd/control/policies/shard_watch.hpp"
#include "fabricd/control/policies/state.hpp"
#include "fabricd/control/policies/trial.hpp"
#include "fabricd/control/stages/smoothing.hpp"

namespace fabricd {

/// What the jobs of the host get done together: what actions beyond one job are judged by. Samples
/// of different jobs are no common currency, and each job says itself how many it made. So each is
/// compared with what it usually says, and counts by its ranks, which the registry confirms.
class HostPace {
  public:
    void begin() noexcept;
    /// A job that is not stale. One whose steps are longer than a window counts with what its last
    /// window with news said, or the sum would jump with every step that ends.
    void add(const JobState& job);
    /// The loop has changed something about a job, or taken it back: what the jobs do now is not
    /// due to anything else alone.
    void stir() noexcept { stirred_ = true; }
    void end(double weight);

    /// Usual samples/s of all jobs.
    double objective() const noexcept;
    /// What each job usually does, for part_of().
    std::vector<double> usual() const;
    /// What the jobs do now as a part of what they did when usual() gave `before`, with the same
    /// jobs: the mean by ranks. No job counts for less than none of it or more than twice of it.
    double part_of(const std::vector<double>& before) const noexcept;
    bool fresh() const noexcept { return fresh_; }
    bool stirred() const noexcept { return stirred_; }
    /// Differs from one set of jobs to another.
    std::uint64_t jobs() const noexcept { return jobs_; }
    /// Usual relative scatter of what they do.
    double noise(double least) const noexcept;

  private:
    struct Job {
        double now = 0, usual = 0;  // samples/s
        double ranks = 0;
    };
    std::vector<Job> pace_;  // of the window, in the order of their keys
    bool fresh_ = false, stirred_ = false;
    std::uint64_t jobs_ = 0, jobs_before_ = 0;
    Ewma part_;  // of each window, of what is usual in it
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
        std::uint64_t jobs = 0;         // that there were when the action began
        std::vector<double> usual;      // and what each of them did
        std::size_t dropped = 0;        // shards of the decision that did not move, or not to stay
        std::set<std::string> arrived;  // those that did
        Promises promises;
        std::uint64_t given_back = 0;  // the last decision that gave promises back
        std::int64_t rests = 0;        // windows until the next may
        int failures = 0;              // of such decisions in a row
        bool failed = false;           // the last of them
    };
    enum class Progress { kUnderWay, kInForce, kLost, kReplaced };
    using Users = std::span<const QuotaWindow>;

    static Progress progress_of(const Trial& trial, Users users);
    Progress settle_moves(const PlacementWindow& now);
    bool allows(ActionKind kind) const;
    bool may(const Ground& ground, ActionKind kind) const;
    const char* interruption_of(const Ground& ground, Progress progress) const;
    bool give_back(Ground& ground, std::optional<Decision> proposal, Told& result,
                   std::uint64_t& last_id);
    bool give_back_on(Ground& ground, const QuotaDevice& device, Told& result,
                      std::uint64_t& last_id);
    bool judge(Ground& ground, Progress progress, Users users, Told& result,
               std::uint64_t& last_id);
    std::optional<Decision> propose_moves(const PlacementWindow& known) const;
    DecisionOutcome fail_moves(const std::string& why);
    void begin(Ground& ground, Decision decision, Told& result, std::uint64_t& last_id);
    void tick_vgpus(const Window& window, Told& result, std::uint64_t& last_id);
    void tick_pool(const Window& window, Told& result, std::uint64_t& last_id);
    void tick_caches(const Window& window, Told& result, std::uint64_t& last_id);
    void tick_shards(const Window& window, double weight, Told& result, std::uint64_t& last_id);

    const ControlConfig& config_;  // the loop's
    HostPace pace_;
    std::map<std::string, Ground> gpus_;  // by name
    Ground pool_;
    Ground caches_;
    CacheMemory cache_memory_;
    Ground shards_;
    ShardWatch watch_;
};

}  // namespace fabricd
