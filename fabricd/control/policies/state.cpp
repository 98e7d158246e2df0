#include "fabricd/control/policies/state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

/// No daemon gets so far: a rank that reports a higher serial made it up, and one near the largest
/// number would make the next one 0.
constexpr std::uint64_t kMaxSerial = std::uint64_t{1} << 62;

/// Nothing is stale, everybody made steps, and the numbers can be computed with.
// Whole windows only: ranks meet in every step, so figures of different moments contradict each
// other.
bool has_news(const JobState& state, const JobWindow& job) {
    if (!job.is_whole() || job.ranks.size() != state.ranks.size()) return false;
    for (const RankWindow& rank : job.ranks) {
        const double inputs[] = {rank.steps,     rank.samples, rank.step_s,
                                 rank.compute_s, rank.wait_s,  rank.comm_s};
        if (rank.stale || !usable(inputs) || rank.steps <= 0 || rank.step_s <= 0) return false;
    }
    return true;
}

/// Windows of a new directive: the first is mixed, the next two show what a step costs now.
constexpr std::int64_t kProbeWindows = 3;

/// A change of speed by so much that it is answered at once.
constexpr double kLeap = 0.2;

/// Of mean distances, for a standard deviation.
constexpr double kDeviations = 1.25;

// What a mean rests on; its memory fades.
double weight_of_mean(const Ewma& mean) {
    return std::clamp<double>(mean.values, 1, 10);
}

void observe_speed(RankState& state, const StepCost& step, const SmoothingWeights& weights,
                   std::int64_t probe_window, bool& has_learned) {
    state.sample_s_before = state.sample_s.mean;
    const double value = step.compute_s / (step.samples + state.fixed_samples);
    const bool is_probed = probe_window > 0 && state.probe.before.samples > 0;
    // A speed that it has had before is no matter of shares, and nothing can be learned next to it.
    if (!is_probed || (probe_window < kProbeWindows && state.sample_s.is_return(value))) {
        state.probe = CostProbe{};
        state.changed = state.sample_s.update(value, weights.level);
    } else if (probe_window == kProbeWindows - 1) {
        state.probe.first = step;
    } else if (probe_window == kProbeWindows && state.probe.first.samples > 0) {
        has_learned = learn_cost(state.probe, step, weights.level, state.sample_s,
                                 state.fixed_samples, state.changed) ||
                      has_learned;
    }
}

void observe_rank(RankState& state, const RankWindow& rank, const SmoothingWeights& weights,
                  std::int64_t probe_window, bool& has_learned) {
    state.samples = rank.samples / rank.steps;
    state.compute_s = rank.compute_s / rank.steps;
    state.changed = false;
    // Without samples or without computing nothing was learned about its speed.
    if (rank.samples > 0 && rank.compute_s > 0) {
        observe_speed(state, {state.samples, state.compute_s}, weights, probe_window, has_learned);
    } else {
        state.sample_s.miss();
    }
    state.comm_s.update(rank.comm_s / rank.steps, weights.level);
    const GradientReading reading{state.compute_s, rank.wait_s / rank.steps, rank.gradient_norm,
                                  rank.bytes / rank.steps};
    state.gradients = observe_gradients(state.gradients, reading, weights.level, weights.slope);
}

// What does not need news: their identity and what they act on.
void take_over(JobState& state, const JobWindow& job) {
    for (RankState& rank : state.ranks) rank.changed = false;
    if (job.ranks.size() != state.ranks.size()) return;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        state.ranks[i].directive_serial = job.ranks[i].directive_serial;
        state.ranks[i].queue = job.ranks[i].queue;
        state.ranks[i].sync_interval = job.ranks[i].sync_interval;
        state.ranks[i].faults = job.ranks[i].faults;
        if (job.ranks[i].faults == 0) state.ranks[i].fault_windows = 0;
        if (job.ranks[i].faults != 0) ++state.ranks[i].fault_windows;
        const std::uint64_t seen = job.ranks[i].directive_serial;
        if (seen <= kMaxSerial) state.serial_seen = std::max(state.serial_seen, seen);
    }
}

// The reading of rank 0 is as good as any: one rank's gradient and the mean of all.
void observe_noise_scale(JobState& state, const JobWindow& job, double weight) {
    // Norms that are not given are NaN, which the stage answers with nothing.
    const RankWindow& first = job.ranks.front();
    const auto scale = gradient_noise_scale(first.gradient_norm * first.gradient_norm,
                                            first.mean_gradient_norm * first.mean_gradient_norm,
                                            state.ranks.front().samples, state.batch);
    if (scale) state.noise_scale.update(*scale, weight);
}

void observe_whole(JobState& state, const JobWindow& job, const ControlConfig& config,
                   const SmoothingWeights& weights) {
    state.batch = 0;
    double step_s = 0;
    double comm_s = std::numeric_limits<double>::max();
    std::vector<double> computing;
    computing.reserve(job.ranks.size());
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankWindow& rank = job.ranks[i];
        state.batch += state.ranks[i].samples;
        step_s = std::max(step_s, rank.step_s / rank.steps);
        comm_s = std::min(comm_s, rank.comm_s / rank.steps);
        if (!state.ranks[i].drained) computing.push_back(state.ranks[i].compute_s);
    }
    for (RankState& rank : state.ranks) {
        rank.share = state.batch > 0 ? rank.samples / state.batch : 0;
    }
    const auto imbalance = imbalance_of(computing);
    state.imbalance_now = imbalance ? imbalance->index : kNothing;
    // samples/s times 1 - I: an action that trades waiting for speed is not taken for a success,
    // and one that evens out ranks counts for more than its first windows show.
    state.objective_now = state.batch / step_s * (1 - (imbalance ? imbalance->index : 0));
    state.step_s.update(step_s, weights.level);
    state.comm_s.update(comm_s, weights.level);
    state.objective.update(state.objective_now, weights.level);
    // Rank 0 speaks for the loss: ranks see different samples, but the same model.
    state.loss.update(job.ranks.front().loss, config, weights);
    observe_noise_scale(state, job, weights.level);
}

// Of all ranks together: each for itself knows its scatter only after many windows.
void observe_scatter(JobState& state, const ControlConfig& config) {
    double sum = 0, known = 0;
    for (const RankState& rank : state.ranks) {
        if (rank.drained || rank.sample_s.values < 2 || rank.sample_s.mean <= 0) continue;
        sum += rank.sample_s.deviation / rank.sample_s.mean;
        ++known;
    }
    state.scatter = std::max(known > 0 ? sum / known : 0, config.noise_floor / 2);
}

// Each window's own imbalance is counted, for a change would be seen late by the smoothed one
// alone; and no more of it than the smoothed one is sure of, for the slowest of many ranks is slow
// by chance in each. A leap of a rank's speed has been seen in two windows and need not be waited
// for.
void judge_imbalance(JobState& state, const ControlConfig& config) {
    const double certain = state.certain_imbalance();
    state.unbalanced.update(std::min(state.imbalance_now, certain), config.imbalance_enter,
                            config.imbalance_leave, config.imbalance_windows);
    const bool any_leap =
        std::any_of(state.ranks.begin(), state.ranks.end(), [&](const RankState& rank) {
            const double by = std::abs(rank.sample_s.mean / rank.sample_s_before - 1);
            return rank.changed && by > std::max(kLeap, 4 * state.scatter);
        });
    if (any_leap && certain > config.imbalance_enter) state.unbalanced.begin();
}

}  // namespace

SmoothingWeights::SmoothingWeights(const ControlConfig& config)
    : level(weight_of_half_life(static_cast<double>(config.half_life))),
      slope(weight_of_half_life(2 * static_cast<double>(config.half_life))) {}

void LossWatch::update(double loss, const ControlConfig& config, const SmoothingWeights& weights) {
    if (!std::isfinite(loss)) return;
    // From value to value, not around the forecast: that one lags behind a turn, which would look
    // like scatter just when it matters.
    if (trend.values > 0) scatter += weights.level * (std::abs(loss - last) - scatter);
    last = loss;
    trend.update(loss, weights.level, weights.slope);
    const auto half_life = static_cast<double>(config.half_life);
    const bool known = trend.values > 2 * half_life && scatter > 0;
    // In scatters per half-life: 1 begins, back to none ends.
    const double rises = known ? trend.slope * half_life / scatter : kNothing;
    worsens.update(rises, 1, 0, config.imbalance_windows);
}

bool JobState::in_force() const noexcept {
    return !ranks.empty() && ranks.front().directive_serial >= serial;
}

std::uint32_t JobState::interval() const noexcept {
    return std::max(ranks.empty() ? 0U : ranks.front().sync_interval, 1U);
}

std::optional<Imbalance> JobState::imbalance() const {
    std::vector<double> computing;
    computing.reserve(ranks.size());
    for (const RankState& rank : ranks) {
        if (rank.drained) continue;
        if (!rank.sample_s.known()) return std::nullopt;
        computing.push_back(rank.compute_of(rank.samples));
    }
    return imbalance_of(computing);
}

double JobState::certain_imbalance() const {
    double sum = 0, slowest = 0, doubt = 0;
    double working = 0;
    for (const RankState& rank : ranks) {
        if (rank.drained || !rank.sample_s.known()) continue;
        const double takes = rank.compute_of(rank.samples);
        sum += takes;
        ++working;
        if (takes <= slowest) continue;
        slowest = takes;
        doubt = takes * kDeviations * scatter / std::sqrt(weight_of_mean(rank.sample_s));
    }
    if (working < 2 || slowest <= 0) return 0;
    // As far as the largest of so many normal numbers mostly is from their mean, and one more.
    const double certain = slowest - (1 + std::sqrt(2 * std::log(working))) * doubt;
    const double mean = sum / working;
    return certain > mean ? 1 - mean / certain : 0;
}

bool JobState::any_changed() const noexcept {
    return std::any_of(ranks.begin(), ranks.end(),
                       [](const RankState& rank) { return rank.changed; });
}

bool JobState::any_suspect() const noexcept {
    return std::any_of(ranks.begin(), ranks.end(), [](const RankState& rank) {
        return !rank.drained && rank.sample_s.suspect_side != 0;
    });
}

void JobState::begin_probe() {
    for (RankState& rank : ranks) {
        rank.probe = CostProbe{};
        // What it was about will not be seen again.
        rank.sample_s.suspect_side = 0;
        if (rank.drained || !rank.sample_s.known() || rank.samples <= 0) continue;
        const double one = kDeviations * scatter;
        // A mean that no later value has confirmed may be that of a window with two speeds in it.
        const double least = rank.sample_s.sound.known ? 0 : kOutlierShare;
        rank.probe = {{rank.samples, rank.compute_of(rank.samples)},
                      one,
                      std::max(one / std::sqrt(weight_of_mean(rank.sample_s)), least),
                      {}};
    }
    is_probing = true;
}

bool JobState::is_of(const JobWindow& window) const noexcept {
    if (window.world != world || window.ranks.size() != ranks.size()) return false;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (window.ranks[i].session != ranks[i].session) return false;
    }
    return true;
}

void JobState::forget_pace() {
    objective = Ewma{};
    step_s = Ewma{};
    comm_s = Ewma{};
}

JobState new_job(const JobWindow& job) {
    JobState state;
    state.arena = job.arena;
    state.group = job.group;
    state.world = job.world;
    state.ranks.reserve(job.ranks.size());
    for (const RankWindow& rank : job.ranks) {
        RankState fresh;
        fresh.session = rank.session;
        fresh.rank = rank.rank;
        state.ranks.push_back(fresh);
    }
    return state;
}

void observe(JobState& state, const JobWindow& job, const ControlConfig& config,
             const SmoothingWeights& weights) {
    take_over(state, job);
    state.has_learned = false;
    state.fresh = has_news(state, job);
    if (!state.fresh) {
        ++state.silent;
        return;
    }
    state.silent = 0;
    ++state.windows;
    state.acted = state.in_force() ? state.acted + 1 : 0;
    const std::int64_t probe_window = state.is_probing ? state.acted : 0;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        observe_rank(state.ranks[i], job.ranks[i], weights, probe_window, state.has_learned);
    }
    if (state.acted >= kProbeWindows) state.is_probing = false;
    observe_scatter(state, config);
    observe_whole(state, job, config, weights);
    judge_imbalance(state, config);
}

}  // namespace fabricd
