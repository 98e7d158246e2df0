#include "fabricd/control/policies/share_plan.hpp"

#include <algorithm>
#include <cstdio>

#include "fabricd/control/stages/data_flow.hpp"
#include "fabricd/control/stages/imbalance.hpp"
#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

/// Computing time of each working rank when it has that share of the batch.
std::vector<double> compute_times(const JobState& job, const std::vector<double>& shares) {
    std::vector<double> times;
    times.reserve(shares.size());
    for (std::size_t i = 0; i < shares.size(); ++i) {
        const RankState& rank = job.ranks[i];
        if (rank.drained) continue;
        times.push_back(rank.compute_of(shares[i] * job.batch));
    }
    return times;
}

}  // namespace

double horizon_s(const ControlConfig& config) {
    return static_cast<double>(config.horizon) *
           std::chrono::duration<double>(config.window).count();
}

std::string reason_text(const char* format, double first, double second) {
    char line[160];
    std::snprintf(line, sizeof line, format, first, second);
    return line;
}

// Promises and outcomes are compared in one objective, whatever the kind of action.
Decision decision_on(const JobState& job) {
    Decision decision;
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
    facts.push_back({"S111", "compute ahead", rank.gradients.compute_s.forecast(1), "s", number});
    facts.push_back({"S113", "speed", rank.speed(), "samples/s", number});
    if (rank.fixed_samples > 0) {
        facts.push_back({"S113", "fixed part of a step", rank.fixed_samples, "samples", number});
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

Promise promise_of_shares(const JobState& job, const std::vector<double>& before,
                          const std::vector<double>& after) {
    const double computing = largest_of(compute_times(job, before));
    const double rest = std::max(job.step_s.mean - computing, 0.0);
    // A rank that takes over samples has to fetch them: about the part of a step that moves.
    const double cost = moved_part(before, after) * job.step_s.mean;
    return {computing + rest, largest_of(compute_times(job, after)) + rest, cost};
}

Promise promise_of_return(const JobState& job, const std::vector<double>& before,
                          const std::vector<double>& after) {
    const double computing = largest_of(compute_times(job, after));
    const double rest = std::max(job.step_s.mean - computing, 0.0);
    return {largest_of(compute_times(job, before)) + rest, computing + rest, 0};
}

// The objective counts the imbalance twice over, as the loop measures it: see observe().
double objective_of(const JobState& job, const std::vector<double>& shares, double step_s) {
    const auto imbalance = imbalance_of(compute_times(job, shares));
    return step_s > 0 ? job.batch / step_s * (1 - (imbalance ? imbalance->index : 0)) : 0;
}

void finish_shares(Decision& decision, const std::vector<double>& before,
                   const std::vector<double>& after, const JobState& job,
                   const ControlConfig& config) {
    // Grown one by one, the list would be copied as often as it doubles.
    decision.facts.reserve(16 + 3 * std::min(job.ranks.size(), kExplainedRanks));
    const Promise promised = promise_of_shares(job, before, after);
    promise(decision, promised, config);
    decision.promised = objective_of(job, after, promised.after_s);
    explain_job(decision, job);
    for (std::size_t i = 0; i < std::min(job.ranks.size(), kExplainedRanks); ++i) {
        explain_rank(decision, job.ranks[i]);
    }
    decision.facts.push_back({"S113", "part that moves", moved_part(before, after), ""});
}

std::vector<double> shares_now(const JobState& job) {
    std::vector<double> shares;
    shares.reserve(job.ranks.size());
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
    std::vector<double> speeds, fixed;
    speeds.reserve(job.ranks.size());
    fixed.reserve(job.ranks.size());
    for (const RankState& rank : job.ranks) {
        speeds.push_back(rank.speed());
        fixed.push_back(job.batch > 0 ? rank.fixed_samples / job.batch : 0);
    }
    return balanced_shares(speeds, fixed, config.share_floor);
}

}  // namespace fabricd
