#include "fabricd/control/policies/job_policy.hpp"

#include <algorithm>
#include <cmath>

#include "fabricd/control/policies/share_plan.hpp"
#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/data_flow.hpp"
#include "fabricd/control/stages/numbers.hpp"
#include "fabricd/control/stages/reassignment.hpp"
#include "fabricd/control/stages/resources.hpp"
#include "fabricd/control/stages/sync_interval.hpp"

namespace fabricd {

namespace {

/// Part of the way from `before` to `after`, so that no more than `most` changes hands.
void bound_step(const std::vector<double>& before, std::vector<double>& after, double most) {
    const double moved = moved_part(before, after);
    if (moved <= most) return;
    const double part = most / moved;
    for (std::size_t i = 0; i < after.size(); ++i) {
        after[i] = before[i] + part * (after[i] - before[i]);
    }
}

}  // namespace

bool works_in_units(const JobState& job) noexcept {
    return !job.units.empty() || std::any_of(job.ranks.begin(), job.ranks.end(),
                                             [](const RankState& rank) { return rank.queue > 0; });
}

std::optional<Decision> propose_shares(const JobState& job, const ControlConfig& config) {
    if (!job.unbalanced.active() || !all_speeds_known(job) || job.batch <= 0) return std::nullopt;
    // Only here, behind the hysteresis: this is where a job that is well is left alone.
    auto after = wanted_shares(job, config);
    if (!after) return std::nullopt;
    Decision decision = decision_on(job);
    BatchShares shares{shares_now(job), std::move(*after)};
    bound_step(shares.before, shares.after, config.share_step);
    const Promise promised = promise_of_shares(job, shares.before, shares.after);
    if (!is_worth_it(promised, config.gain, horizon_s(config))) return std::nullopt;
    finish_shares(decision, shares.before, shares.after, job, config);
    decision.action = std::move(shares);
    decision.reason = reason_text("imbalance %.2f: shares by speed promise %.1f %% more samples/s",
                                  job.imbalance_now, 100 * decision.gain);
    return decision;
}

std::optional<Decision> propose_units(const JobState& job, const ControlConfig& config) {
    std::vector<std::uint64_t> tasks;
    std::vector<double> speeds, responses, task_s;
    std::uint64_t all = 0;
    double computing_s = 0;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        // What was decided last; a job that was never directed says itself what it has queued.
        const double units = i < job.units.size() ? job.units[i] : rank.queue;
        tasks.push_back(static_cast<std::uint64_t>(units));
        all += tasks.back();
        speeds.push_back(rank.speed());
        responses.push_back(rank.comm_s.mean);
        computing_s += rank.compute_s / static_cast<double>(job.ranks.size());
        // A rank without tasks is judged by its speed, at the job's samples per task (below).
        task_s.push_back(units > 0 ? rank.compute_s / units : 0);
    }
    // Without a queue the job does not work in units, and shares are its way.
    if (all == 0 || !job.unbalanced.active() || !all_speeds_known(job)) return std::nullopt;
    const double samples_per_task = job.batch / static_cast<double>(all);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (tasks[i] == 0) task_s[i] = samples_per_task * job.ranks[i].sample_s.mean;
    }
    const auto strategy = resource_strategy(speeds, responses, computing_s,
                                            {config.capability_power, config.response_power});
    if (!strategy) return std::nullopt;
    const auto answer = reassign_tasks(tasks, *strategy, task_s, config.gain);
    if (!answer || answer->tasks == tasks) return std::nullopt;
    const double rest = std::max(job.step_s.mean - answer->before_s, 0.0);
    const Promise promised{answer->before_s + rest, answer->after_s + rest, job.step_s.mean};
    if (!is_worth_it(promised, config.gain, horizon_s(config))) return std::nullopt;

    Decision decision = decision_on(job);
    decision.action = WorkUnits{tasks, answer->tasks};
    promise(decision, promised, config);
    decision.promised = decision.objective * (1 + decision.gain);
    explain_job(decision, job);
    for (std::size_t i = 0; i < std::min(job.ranks.size(), kExplainedRanks); ++i) {
        explain_rank(decision, job.ranks[i]);
        decision.facts.push_back({"S222", "resources", (*strategy)[i], "", job.ranks[i].rank});
        decision.facts.push_back({"S223", "time of a task", task_s[i], "s", job.ranks[i].rank});
    }
    decision.reason =
        reason_text("imbalance %.2f: tasks by resources promise %.1f %% more samples/s",
                    job.imbalance_now, 100 * decision.gain);
    return decision;
}

std::optional<Decision> propose_interval(const JobState& job, const ControlConfig& config) {
    const std::uint32_t now = job.interval();
    const double step_s = job.step_s.mean;
    const double comm_s = std::min(job.comm_s.mean, step_s);
    // What a step takes apart from synchronising: v of S312 has to be free of what it is set
    // against.
    const double without_s = step_s - comm_s;
    const SyncWeights weights{config.speed_power, config.delay_power, config.sync_share,
                              static_cast<std::uint32_t>(config.sync_max)};
    // Of `now` steps one synchronises, so it takes so many times the mean.
    const double sync_s = comm_s * now;
    const auto known = without_s > 0 ? update_speed(1 / without_s, sync_s, weights) : std::nullopt;
    const bool is_safety = job.loss.worsens.active() && now > 1;
    // What is done for the loss needs no figures.
    if (!known && !is_safety) return std::nullopt;
    const double kappa = known.value_or(0);
    const std::uint32_t wanted = sync_interval(kappa, now, job.loss.worsens.active(), weights);
    if (wanted == now) return std::nullopt;
    const Promise promised{step_s, without_s + sync_s / wanted, 0};
    // In both directions: a longer interval has to pay for the distance between replicas, and a
    // shorter one is only worth its price when the interval has become far too long.
    if (!is_safety && std::abs(gain_of(promised)) <= config.gain) return std::nullopt;

    Decision decision = decision_on(job);
    decision.action = SyncInterval{now, wanted};
    promise(decision, promised, config);
    decision.promised = decision.objective * (1 + decision.gain);
    decision.facts.push_back({"S312", "step without synchronising", without_s, "s"});
    decision.facts.push_back({"S312", "a synchronisation adds", sync_s, "s"});
    decision.facts.push_back({"S312", "kappa", kappa, "steps"});
    decision.facts.push_back({"S313", "share allowed", config.sync_share, ""});
    decision.facts.push_back({"S111", "loss slope", job.loss.trend.slope, "per window"});
    decision.reason = is_safety ? "the loss gets worse: the interval halves at once"
                                : reason_text("a synchronisation lasts %.2f steps: interval %.0f",
                                              kappa, static_cast<double>(wanted));
    return decision;
}

}  // namespace fabricd
