#include "fabricd/control/policies/slow_ranks.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/control/policies/share_plan.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

/// Times that the wait for another try doubles.
constexpr int kRetryDoublings = 4;

/// Of the even share: with nothing to do a rank would show nothing.
constexpr double kMinTrial = 0.01;

std::int64_t windows_until_retry(const RankState& rank, const ControlConfig& config) {
    return config.drain_retry << std::min(rank.relapses, kRetryDoublings);
}

/// What the job does when its working ranks do as before and one more takes no time.
double objective_of_trial(const JobState& job) {
    double working = 0;
    for (const RankState& rank : job.ranks) working += rank.drained ? 0 : 1;
    const double objective = job.objective.known() ? job.objective.mean : job.objective_now;
    return objective * working / (working + 1);
}

// Nothing without a speed of each of the others, or when there are none.
std::optional<Decision> drain_of(const JobState& job, std::size_t i, const ControlConfig& config) {
    // Tried on a copy, so that prediction and shares come from the same code as for any other
    // change.
    JobState without = job;
    without.ranks[i].drained = true;
    if (!all_speeds_known(without)) return std::nullopt;
    auto after = wanted_shares(without, config);
    if (!after) return std::nullopt;  // it is the only one
    Decision decision = decision_on(job);
    Drain drain{job.ranks[i].rank, shares_now(job), std::move(*after)};
    // Its share is lost on purpose: what the others do is what is promised.
    finish_shares(decision, drain.before, drain.after, without, config);
    decision.action = std::move(drain);
    return decision;
}

bool has_drain_fault(const RankState& rank, const ControlConfig& config) {
    return rank.faults != 0 && (rank.faults & faults_of(config.drain_faults)) != 0;
}

}  // namespace

std::optional<Decision> watch_for_slow_rank(JobState& job, const ControlConfig& config) {
    std::vector<double> speeds;
    speeds.reserve(job.ranks.size());
    for (const RankState& rank : job.ranks) {
        if (rank.speed() > 0) speeds.push_back(rank.speed());
    }
    // The median and not the mean: one rank that stopped would drag the mean along, and a few fast
    // ones would make all others slow.
    const double usual = median_of(speeds);
    for (RankState& rank : job.ranks) {
        if (rank.drained) {  // it stays alarmed
            ++rank.drained_windows;
            continue;
        }
        const bool is_slow = rank.speed() > 0 && rank.speed() < config.alarm_speed * usual;
        rank.slow_windows = is_slow ? rank.slow_windows + 1 : 0;
        // Back to normal: the next time is another alarm.
        if (!is_slow) rank.alarmed = false;
        const auto values = static_cast<std::int64_t>(rank.sample_s.values);
        if (rank.returned && !is_slow && values > config.probation) {
            rank.returned = false;
            rank.relapses = 0;
        }
        // One that has just been slow for long need not prove it again for as long.
        const std::int64_t least = rank.returned ? config.probation : config.alarm_windows;
        if (rank.alarmed || rank.slow_windows < least) continue;
        rank.alarmed = true;
        Decision decision = decision_on(job);
        decision.action = Alarm{rank.rank};
        decision.facts.push_back({"alarm", "speed", rank.speed(), "samples/s", rank.rank});
        decision.facts.push_back({"alarm", "median speed", usual, "samples/s"});
        decision.facts.push_back(
            {"alarm", "slow for", static_cast<double>(rank.slow_windows), "windows", rank.rank});
        decision.reason = reason_text("rank %.0f stays at %.0f %% of the median speed", rank.rank,
                                      100 * rank.speed() / usual);
        return decision;
    }
    return std::nullopt;
}

std::optional<Decision> watch_for_fault(JobState& job) {
    for (RankState& rank : job.ranks) {
        const DeviceFaults reported = std::exchange(rank.faults_reported, rank.faults);
        if ((rank.faults & ~reported) == 0) continue;
        Decision decision = decision_on(job);
        decision.action = Alarm{rank.rank};
        decision.facts.push_back(
            {"alarm", "device fault " + words_of(rank.faults), 1, "", rank.rank});
        decision.reason =
            "rank " + std::to_string(rank.rank) + ": its device says " + words_of(rank.faults);
        return decision;
    }
    return std::nullopt;
}

std::optional<Decision> propose_fault_drain(const JobState& job, const ControlConfig& config) {
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        const bool lasts = rank.fault_windows >= config.imbalance_windows;
        if (!lasts || rank.drained || !has_drain_fault(rank, config)) continue;
        auto decision = drain_of(job, i, config);
        if (!decision) continue;
        decision->reason = "rank " + std::to_string(rank.rank) + " is drained: its device says " +
                           words_of(rank.faults);
        decision->outcome = Outcome::kDone;
        return decision;
    }
    return std::nullopt;
}

std::optional<Decision> propose_drain(const JobState& job, const ControlConfig& config) {
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        if (!rank.alarmed || rank.drained) continue;
        auto decision = drain_of(job, i, config);
        if (!decision) return std::nullopt;
        decision->reason = reason_text("rank %.0f is drained after its alarm (%.0f windows slow)",
                                       rank.rank, static_cast<double>(rank.slow_windows));
        return decision;
    }
    return std::nullopt;
}

std::optional<Decision> propose_return(const JobState& job, const ControlConfig& config) {
    if (config.drain_retry == 0 || !all_speeds_known(job)) return std::nullopt;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        if (!rank.drained || rank.drained_windows < windows_until_retry(rank, config)) continue;
        if (has_drain_fault(rank, config)) continue;
        Decision decision = decision_on(job);
        Return trial{rank.rank, shares_now(job), {}};
        // As much as a rank always keeps, so that one that is as slow as it was holds up no other
        // for long. With a floor of 0 it would learn nothing.
        const double share =
            std::max(config.share_floor, kMinTrial) / static_cast<double>(job.ranks.size());
        trial.after = trial.before;
        for (double& other : trial.after) other *= 1 - share;
        trial.after[i] += share;
        decision.action = std::move(trial);
        // Nothing is gained yet. Its short computing counts as imbalance from now on, as if it took
        // no time at all: any better is fine.
        decision.promised = objective_of_trial(job);
        const auto waited = static_cast<double>(rank.drained_windows);
        decision.facts.push_back({"alarm", "drained for", waited, "windows", rank.rank});
        decision.facts.push_back(
            {"alarm", "relapses", static_cast<double>(rank.relapses), "", rank.rank});
        decision.reason =
            reason_text("rank %.0f is tried again after %.0f windows", rank.rank, waited);
        return decision;
    }
    return std::nullopt;
}

void set_drained(RankState& rank, bool drained) noexcept {
    if (rank.drained == drained) return;
    rank.drained = drained;
    rank.drained_windows = 0;
    rank.slow_windows = 0;
    if (drained) {
        rank.relapses += rank.returned ? 1 : 0;
        rank.returned = false;
        rank.alarmed = true;
        return;
    }
    rank.returned = true;
    rank.alarmed = false;
    // What it was like is what it was drained for.
    rank.sample_s = Ewma{};
    rank.fixed_samples = 0;
}

}  // namespace fabricd
