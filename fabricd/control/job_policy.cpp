#include "fabricd/control/job_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "fabricd/control/apportion.hpp"
#include "fabricd/control/numbers.hpp"
#include "fabricd/control/s113_data_flow.hpp"
#include "fabricd/control/s222_resources.hpp"
#include "fabricd/control/s223_reassignment.hpp"
#include "fabricd/control/s313_sync_interval.hpp"

namespace fabricd {

namespace {

/// Of large jobs only the first ranks are explained: the journal is for reading.
constexpr std::size_t kExplainedRanks = 64;

double window_s(const ControlConfig& config) {
    return std::chrono::duration<double>(config.window).count();
}

double horizon_s(const ControlConfig& config) {
    return static_cast<double>(config.horizon) * window_s(config);
}

std::string text(const char* format, double first, double second) {
    char line[160];
    std::snprintf(line, sizeof line, format, first, second);
    return line;
}

// Promises and outcomes are compared in one objective, whatever the kind of action.
Decision decision_on(const JobState& job, ActionKind kind) {
    Decision decision;
    decision.kind = kind;
    decision.arena = job.arena;
    decision.group = job.group;
    decision.objective = job.objective.known() ? job.objective.mean : job.objective_now;
    decision.promised = decision.objective;
    return decision;
}

// What the guards saw is written down with what they let pass, or a "why" could not say it.
void promise(Decision& decision, const Promise& promised, const ControlConfig& config) {
    decision.gain = gain_of(promised);
    decision.cost_s = promised.cost_s;
    decision.facts.push_back({"guard", "step time now", promised.before_s, "s"});
    decision.facts.push_back({"guard", "step time predicted", promised.after_s, "s"});
    decision.facts.push_back({"guard", "least gain", config.gain, ""});
    decision.facts.push_back({"guard", "cost", promised.cost_s, "s"});
    decision.facts.push_back({"guard", "horizon", horizon_s(config), "s"});
}

void explain_rank(Decision& decision, const RankState& rank) {
    const std::int32_t number = rank.rank;
    auto& facts = decision.facts;
    facts.push_back(
        {"S111", "compute time forecast", rank.gradients.compute_s.forecast(1), "s", number});
    facts.push_back({"S113", "speed", rank.speed(), "samples/s", number});
    if (rank.others_busy > 0) {
        facts.push_back({"S113", "busy by others", rank.others_busy, "", number});
    }
}

// Of the whole job: these are in every decision about shares and units, acted on or not.
void explain_job(Decision& decision, const JobState& job) {
    const auto imbalance = job.imbalance();
    decision.facts.push_back({"S112", "imbalance", imbalance ? imbalance->index : 0, ""});
    decision.facts.push_back({"S112", "variation", imbalance ? imbalance->variation : 0, ""});
    decision.facts.push_back({"S113", "batch", job.batch, "samples"});
    if (job.noise_scale.known()) {
        decision.facts.push_back({"S111", "gradient noise scale", job.noise_scale.mean, "samples"});
    }
}

/// Computing time of each working rank when it has that share of the batch.
std::vector<double> compute_times(const JobState& job, const std::vector<double>& shares) {
    std::vector<double> times;
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const RankState& rank = job.ranks[i];
        if (rank.drained) continue;
        times.push_back(shares[i] * job.batch * rank.sample_s.mean * (1 + rank.others_busy));
    }
    return times;
}

/// The step is the slowest rank's computing, and what is left of today's step beside that.
Promise promise_of_shares(const JobState& job, const std::vector<double>& before,
                          const std::vector<double>& after) {
    const double computing = largest_of(compute_times(job, before));
    const double rest = std::max(job.step_s.mean - computing, 0.0);
    // Whoever takes over samples has to fetch them: about the part of a step that moves.
    const double cost = moved_part(before, after) * job.step_s.mean;
    return {computing + rest, largest_of(compute_times(job, after)) + rest, cost};
}

// The objective counts the imbalance twice over, as the loop measures it: see observe().
double objective_of(const JobState& job, const std::vector<double>& shares, double step_s) {
    const auto imbalance = imbalance_of(compute_times(job, shares));
    return step_s > 0 ? job.batch / step_s * (1 - (imbalance ? imbalance->index : 0)) : 0;
}

void finish_shares(Decision& decision, const JobState& job, const ControlConfig& config) {
    const Promise promised = promise_of_shares(job, decision.before, decision.after);
    promise(decision, promised, config);
    decision.promised = objective_of(job, decision.after, promised.after_s);
    explain_job(decision, job);
    for (std::size_t i = 0; i < std::min(job.ranks.size(), kExplainedRanks); ++i) {
        explain_rank(decision, job.ranks[i]);
    }
    decision.facts.push_back(
        {"S113", "part that moves", moved_part(decision.before, decision.after), ""});
}

std::vector<double> shares_now(const JobState& job) {
    std::vector<double> shares;
    for (const RankState& rank : job.ranks) shares.push_back(rank.share);
    return shares;
}

// One unknown speed makes every share a guess: then nothing is proposed, and the next windows are
// waited for.
bool all_speeds_known(const JobState& job) {
    return std::all_of(job.ranks.begin(), job.ranks.end(),
                       [](const RankState& rank) { return rank.drained || rank.speed() > 0; });
}

std::optional<std::vector<double>> wanted_shares(const JobState& job, const ControlConfig& config) {
    std::vector<double> speeds, loads;
    for (const RankState& rank : job.ranks) {
        speeds.push_back(rank.speed());
        loads.push_back(rank.others_busy);
    }
    return balanced_shares(speeds, loads, config.share_floor);
}

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

std::optional<Decision> propose_shares(const JobState& job, const ControlConfig& config) {
    if (!job.unbalanced.active() || !all_speeds_known(job) || job.batch <= 0) return std::nullopt;
    // Only here, behind the hysteresis: this is where a job that is well is left alone.
    auto after = wanted_shares(job, config);
    if (!after) return std::nullopt;
    Decision decision = decision_on(job, ActionKind::kBatchShares);
    decision.before = shares_now(job);
    bound_step(decision.before, *after, config.share_step);
    const Promise promised = promise_of_shares(job, decision.before, *after);
    if (!is_worth_it(promised, config.gain, horizon_s(config))) return std::nullopt;
    decision.after = std::move(*after);
    finish_shares(decision, job, config);
    decision.reason = text("imbalance %.2f: shares by speed promise %.1f %% more samples/s",
                           job.imbalance_now, 100 * decision.gain);
    return decision;
}

std::optional<Decision> propose_units(const JobState& job, const ControlConfig& config) {
    std::vector<std::uint64_t> tasks;
    std::vector<double> speeds, responses, task_s;
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        // What was decided last; a job that nobody has directed yet says itself what it has queued.
        const double units = i < job.units.size() ? job.units[i] : rank.queue;
        tasks.push_back(static_cast<std::uint64_t>(units));
        all += tasks.back();
        speeds.push_back(rank.speed());
        responses.push_back(rank.comm_s.mean);
        // A rank without tasks is judged by its speed, at the job's samples per task (below).
        task_s.push_back(units > 0 ? rank.compute_s / units : 0);
    }
    // Without a queue the job does not work in units, and shares are its way.
    if (all == 0 || !job.unbalanced.active() || !all_speeds_known(job)) return std::nullopt;
    const double samples_per_task = job.batch / static_cast<double>(all);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (tasks[i] == 0) task_s[i] = samples_per_task * job.ranks[i].sample_s.mean;
    }
    const auto strategy =
        resource_strategy(speeds, responses, {config.capability_power, config.response_power});
    if (!strategy) return std::nullopt;
    const auto answer = reassign_tasks(tasks, *strategy, task_s, config.gain);
    if (!answer || answer->tasks == tasks) return std::nullopt;
    const double rest = std::max(job.step_s.mean - answer->before_s, 0.0);
    const Promise promised{answer->before_s + rest, answer->after_s + rest, job.step_s.mean};
    if (!is_worth_it(promised, config.gain, horizon_s(config))) return std::nullopt;

    Decision decision = decision_on(job, ActionKind::kWorkUnits);
    decision.before.assign(tasks.begin(), tasks.end());
    decision.after.assign(answer->tasks.begin(), answer->tasks.end());
    promise(decision, promised, config);
    decision.promised = decision.objective * (1 + decision.gain);
    explain_job(decision, job);
    for (std::size_t i = 0; i < std::min(job.ranks.size(), kExplainedRanks); ++i) {
        explain_rank(decision, job.ranks[i]);
        decision.facts.push_back({"S222", "resources", (*strategy)[i], "", job.ranks[i].rank});
        decision.facts.push_back({"S223", "time of a task", task_s[i], "s", job.ranks[i].rank});
    }
    decision.reason = text("imbalance %.2f: tasks by resources promise %.1f %% more samples/s",
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
    if (without_s <= 0) return std::nullopt;
    const SyncWeights weights{config.speed_power, config.delay_power, config.sync_share,
                              static_cast<std::uint32_t>(config.sync_max)};
    // Of `now` steps one synchronises, so it takes so many times the mean.
    const double sync_s = comm_s * now;
    const auto kappa = update_speed(1 / without_s, sync_s, weights);
    if (!kappa) return std::nullopt;
    const bool worsens = job.loss.worsens.active();
    const std::uint32_t wanted = sync_interval(*kappa, now, worsens, weights);
    if (wanted == now) return std::nullopt;
    const Promise promised{step_s, without_s + sync_s / wanted, 0};
    const bool is_safety = worsens && wanted < now;
    // In both directions: a longer interval has to pay for the distance between replicas, and a
    // shorter one is only worth its price when the interval has become far too long.
    if (!is_safety && std::abs(gain_of(promised)) <= config.gain) return std::nullopt;

    Decision decision = decision_on(job, ActionKind::kSyncInterval);
    decision.before = {static_cast<double>(now)};
    decision.after = {static_cast<double>(wanted)};
    promise(decision, promised, config);
    decision.promised = decision.objective * (1 + decision.gain);
    decision.facts.push_back({"S312", "steps/s without synchronising", 1 / without_s, "steps/s"});
    decision.facts.push_back({"S312", "a synchronisation adds", sync_s, "s"});
    decision.facts.push_back({"S312", "kappa", *kappa, "steps"});
    decision.facts.push_back({"S313", "share allowed", config.sync_share, ""});
    decision.facts.push_back({"S111", "loss slope", job.loss.trend.slope, "per window"});
    decision.reason = is_safety ? "the loss gets worse: the interval halves at once"
                                : text("a synchronisation lasts %.2f steps: interval %.0f", *kappa,
                                       static_cast<double>(wanted));
    return decision;
}

std::optional<Decision> watch_for_slow_rank(JobState& job, const ControlConfig& config) {
    std::vector<double> speeds;
    for (const RankState& rank : job.ranks) {
        if (rank.speed() > 0) speeds.push_back(rank.speed());
    }
    // The median and not the mean: one rank that stopped would drag the mean along, and a few fast
    // ones would make all others slow.
    const double usual = median_of(speeds);
    for (RankState& rank : job.ranks) {
        if (rank.drained) continue;  // it stays alarmed
        const bool is_slow = rank.speed() > 0 && rank.speed() < config.alarm_speed * usual;
        rank.slow_windows = is_slow ? rank.slow_windows + 1 : 0;
        // Back to normal: the next time is another alarm.
        if (!is_slow) rank.alarmed = false;
        if (rank.alarmed || rank.slow_windows < config.alarm_windows) continue;
        rank.alarmed = true;
        Decision decision = decision_on(job, ActionKind::kAlarm);
        decision.rank = rank.rank;
        decision.facts.push_back({"alarm", "speed", rank.speed(), "samples/s", rank.rank});
        decision.facts.push_back({"alarm", "median speed", usual, "samples/s"});
        decision.facts.push_back(
            {"alarm", "slow for", static_cast<double>(rank.slow_windows), "windows", rank.rank});
        decision.reason = text("rank %.0f stays at %.0f %% of the median speed", rank.rank,
                               100 * rank.speed() / usual);
        return decision;
    }
    return std::nullopt;
}

std::optional<Decision> propose_drain(const JobState& job, const ControlConfig& config) {
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        if (!rank.alarmed || rank.drained || !all_speeds_known(job)) continue;
        // Tried on a copy, so that prediction and shares come from the same code as for any other
        // change.
        JobState without = job;
        without.ranks[i].drained = true;
        auto after = wanted_shares(without, config);
        if (!after) return std::nullopt;  // it is the only one
        Decision decision = decision_on(job, ActionKind::kDrain);
        decision.rank = rank.rank;
        decision.before = shares_now(job);
        decision.after = std::move(*after);
        finish_shares(decision, without, config);
        // Its share is lost on purpose: what the others do is what is promised.
        decision.reason = text("rank %.0f is drained after its alarm (%.0f windows slow)",
                               rank.rank, static_cast<double>(rank.slow_windows));
        return decision;
    }
    return std::nullopt;
}

}  // namespace fabricd
