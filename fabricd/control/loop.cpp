#include "fabricd/control/loop.hpp"

#include <algorithm>

#include "fabricd/control/job_policy.hpp"

namespace fabricd {

namespace {

/// Speeds of ended sessions that are kept; a group that shrinks comes back within a few windows.
constexpr std::size_t kRemembered = 8192;
/// Below this the first windows of a job are start-up: compilers warm up, caches fill.
constexpr std::int64_t kWarmUpWindows = 3;

/// A share that rose by less is no cause of anything.
constexpr double kShareRise = 0.01;

double noise_of(const Ewma& objective, const ControlConfig& config) {
    const double scatter = objective.mean > 0 ? objective.deviation / objective.mean : 0;
    return std::max(scatter, config.noise_floor);
}

}  // namespace

Loop::Loop(ControlConfig config, std::uint64_t last_id)
    : config_(std::move(config)), weights_(config_), last_id_(last_id) {}

bool Loop::allows(ActionKind kind) const {
    return has_word(config_.actions, word_of(kind));
}

TickResult Loop::tick(const Window& window) {
    TickResult result;
    window_ = window.number;
    ++counters_.windows;
    forget_ended(window);
    host_objective_ = 0;
    counters_.stale_jobs = 0;
    counters_.alarmed_ranks = 0;
    for (const JobWindow& job : window.jobs) {
        // Half of a group is no job: its other ranks may be elsewhere or not there yet.
        if (!job.is_whole()) continue;
        tick_job(job_of(job), job, result);
    }
    counters_.jobs = jobs_.size();
    tick_host(window, result);
    return result;
}

void Loop::forget_ended(const Window& window) {
    if (remembered_.size() > kRemembered) remembered_.clear();
    // Both are in the order of their keys.
    auto seen = window.jobs.begin();
    for (auto known = jobs_.begin(); known != jobs_.end();) {
        const auto key_of = [](const JobWindow& job) { return JobKey{job.arena, job.group}; };
        while (seen != window.jobs.end() && key_of(*seen) < known->first) ++seen;
        if (seen != window.jobs.end() && key_of(*seen) == known->first) {
            ++known;
            continue;
        }
        // Gone with its group, perhaps only to come back under another: see job_of().
        for (const RankState& rank : known->second.ranks) remembered_[rank.session] = rank;
        known = jobs_.erase(known);
    }
}

JobState& Loop::job_of(const JobWindow& window) {
    const auto [place, is_new] = jobs_.try_emplace(JobKey{window.arena, window.group});
    if (!is_new) return place->second;
    place->second = new_job(window);
    for (RankState& rank : place->second.ranks) {
        const auto known = remembered_.find(rank.session);
        if (known == remembered_.end()) continue;
        // What was measured goes along; what was decided about it as a member of that group not.
        rank.sample_s = known->second.sample_s;
        rank.gradients = known->second.gradients;
        remembered_.erase(known);
    }
    return place->second;
}

void Loop::tick_job(JobState& job, const JobWindow& window, TickResult& result) {
    observe(job, window, config_, weights_);
    for (const RankState& rank : job.ranks) counters_.alarmed_ranks += rank.alarmed ? 1 : 0;
    if (job.is_stale(config_)) {
        // Fail static: what was said last stays, and nothing is concluded from silence.
        ++counters_.stale_jobs;
        if (const auto ended = job.trial.interrupt("no news of the job")) tell(*ended, result);
        return;
    }
    if (!job.fresh) return;
    // From here on the window counts, for cool-downs and for the objective of the host.
    job.trial.pass();
    host_objective_ += job.objective_now;
    judge_job(job, result);
    if (job.windows >= kWarmUpWindows) decide_job(job, result);
}

void Loop::judge_job(JobState& job, TickResult& result) {
    if (!job.trial.running() || answer_speed_change(job, result)) return;
    const auto ended =
        job.trial.judge(job.objective_now, job.in_force(), config_.probation, config_.cool_down);
    if (!ended) return;
    tell(*ended, result);
    if (ended->outcome == Outcome::kUndone) undo_job(job, result);
}

// A rank that became faster or slower makes the promise void, unless the action itself slowed it: a
// larger share may not fit into its cache or its memory.
bool Loop::answer_speed_change(JobState& job, TickResult& result) {
    const Decision& decision = job.trial.decision();
    bool any = false;
    bool is_guilty = false;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        if (!rank.changed) continue;
        any = true;
        // Only shares can do this: units and intervals do not change what a sample costs.
        const bool has_more = decision.kind == ActionKind::kBatchShares &&
                              i < decision.after.size() &&
                              decision.after[i] > decision.before[i] + kShareRise;
        is_guilty = is_guilty || (has_more && rank.sample_s.mean > rank.sample_s_before);
    }
    if (!any) return false;
    const Probation& probation = job.trial.probation();
    const bool is_worse = job.objective_now < probation.before * (1 - probation.noise);
    if (is_guilty && is_worse) {
        const auto ended = job.trial.give_up("a rank became slower with its larger share",
                                             job.objective_now, config_.cool_down);
        tell(*ended, result);
        undo_job(job, result);
    } else {
        tell(*job.trial.interrupt("the speed of a rank changed"), result);
    }
    return true;
}

void Loop::undo_job(JobState& job, TickResult& result) {
    const Decision undone = job.trial.decision();
    // Not judged in its turn: it restores what was there, and a rollback of a rollback is a
    // pendulum.
    Decision back = undone;
    back.before = undone.after;
    back.after = undone.before;
    back.undoes = undone.id;
    back.facts.clear();
    back.gain = 0;
    back.objective = job.objective_now;
    back.promised = undone.objective;
    back.reason = "takes back decision " + std::to_string(undone.id);
    back.outcome = Outcome::kDone;
    back.measured = 0;
    direct(job, back, result);
    tell(back, result);
}

void Loop::decide_job(JobState& job, TickResult& result) {
    if (auto alarm = watch_for_slow_rank(job, config_)) {
        alarm->outcome = Outcome::kDone;
        tell(*alarm, result);
        ++counters_.alarmed_ranks;
    }
    // The loss comes first, and also on top of what is on probation: it is about being right.
    const bool may_sync = allows(ActionKind::kSyncInterval);
    if (may_sync && job.loss.worsens.active() && job.interval() > 1 &&
        (!job.trial.running() || job.in_force())) {
        if (const auto ended = job.trial.interrupt("the loss gets worse")) tell(*ended, result);
        if (auto less = propose_interval(job, config_)) return take(job, std::move(*less), result);
    }
    using Propose = std::optional<Decision> (*)(const JobState&, const ControlConfig&);
    struct Kind {
        ActionKind kind;
        Propose propose;
    };
    // In the order of what they are worth; the first that has something to say is the only one.
    static constexpr Kind kKinds[] = {{ActionKind::kDrain, propose_drain},
                                      {ActionKind::kWorkUnits, propose_units},
                                      {ActionKind::kBatchShares, propose_shares},
                                      {ActionKind::kSyncInterval, propose_interval}};
    // One kind at a time: with two changes at once nobody could tell which of them did it.
    for (const auto& [kind, propose] : kKinds) {
        if (!allows(kind) || !job.trial.may(kind)) continue;
        if (auto decision = propose(job, config_)) return take(job, std::move(*decision), result);
    }
}

void Loop::take(JobState& job, Decision decision, TickResult& result) {
    if (is_dry()) {
        // Nothing is on probation, since nothing happened.
        decision.outcome = Outcome::kNotApplied;
        // Once in a while is enough to see what it would do.
        job.trial.wait(decision.kind, config_.cool_down);
        return tell(decision, result);
    }
    direct(job, decision, result);
    tell(decision, result);
    job.trial.begin(decision, noise_of(job.objective, config_));
    // Every judgement of the objective starts here: what was before belongs to other shares.
    job.objective = Ewma{};
    job.step_s = Ewma{};
}

// What holds from now on: `values`, of the decision's kind. `forward`: it is done, not taken back.
void Loop::hold(JobState& job, const Decision& decision, const std::vector<double>& values,
                bool forward) {
    switch (decision.kind) {
        case ActionKind::kDrain:
            job.ranks[static_cast<std::size_t>(decision.rank)].drained = forward;
            [[fallthrough]];
        case ActionKind::kBatchShares:
            job.shares = values;
            break;
        case ActionKind::kWorkUnits:
            job.units = values;
            break;
        default:
            job.sync_interval = static_cast<std::uint32_t>(values.front());
    }
}

// Keeps what was decided and says all of it, since a page holds one image.
void Loop::direct(JobState& job, Decision& decision, TickResult& result) {
    hold(job, decision, decision.after, decision.undoes == 0);
    decision.id = ++last_id_;
    // Above all that a session of the job has ever seen, also from another daemon or in another
    // group: a page refuses what does not rise.
    last_serial_ = std::max(last_serial_, job.serial) + 1;
    decision.serial = job.serial = last_serial_;
    Directive directive{decision.serial, decision.id, job.arena,        job.group, job.world, {},
                        job.shares,      job.units,   job.sync_interval};
    for (const RankState& rank : job.ranks) directive.sessions.push_back(rank.session);
    result.directives.push_back(std::move(directive));
}

void Loop::tick_host(const Window& window, TickResult& result) {
    for (const QuotaDevice& device : window.devices) {
        Ground& ground = grounds_[device.name];
        std::optional<Decision> proposal;
        // Memory before compute: a refused allocation ends a job, a small share only slows it.
        if (ground.trial.may(ActionKind::kQuota)) proposal = propose_quotas(device, config_);
        if (!proposal && ground.trial.may(ActionKind::kComputeShare)) {
            proposal = propose_compute_shares(device, config_);
        }
        tick_ground(ground, std::move(proposal), result);
    }
    if (window.placement.shards.empty()) return;
    Ground& shards = grounds_[""];
    std::optional<Decision> proposal;
    if (shards.trial.may(ActionKind::kPlacement)) {
        proposal = propose_placement(window.placement, config_);
    }
    tick_ground(shards, std::move(proposal), result);
}

void Loop::tick_ground(Ground& ground, std::optional<Decision> proposal, TickResult& result) {
    ground.trial.pass();
    const auto ended =
        ground.trial.judge(host_objective_, true, config_.probation, config_.cool_down);
    if (ended) {
        tell(*ended, result);
        if (ended->outcome == Outcome::kUndone) {
            Decision back = ground.trial.decision();
            back.undoes = back.id;
            std::swap(back.before, back.after);
            back.facts.clear();
            back.reason = "takes back decision " + std::to_string(back.undoes);
            back.outcome = Outcome::kDone;
            back.id = ++last_id_;
            return tell(back, result);
        }
    }
    if (!proposal || !allows(proposal->kind)) return;
    Decision& decision = *proposal;
    decision.id = ++last_id_;
    decision.objective = host_objective_;
    decision.promised = host_objective_;  // it must not harm
    if (is_dry()) {
        decision.outcome = Outcome::kNotApplied;
        ground.trial.wait(decision.kind, config_.cool_down);
        return tell(decision, result);
    }
    tell(decision, result);
    // Many jobs make up this objective, and it scatters with all of them.
    ground.trial.begin(decision, 2 * config_.noise_floor);
}

std::optional<DecisionOutcome> Loop::failed(std::uint64_t decision, const std::string& why) {
    // By number: the controller knows decisions, not subjects. A handful are on probation at a
    // time.
    const auto end = [&](Trial& trial) -> std::optional<DecisionOutcome> {
        if (!trial.running() || trial.decision().id != decision) return std::nullopt;
        auto ended = trial.interrupt("");
        ended->outcome = Outcome::kFailed;
        ended->reason = why;
        ended->window = window_;
        trial.wait(trial.decision().kind, config_.cool_down);
        ++counters_.outcomes[static_cast<std::size_t>(Outcome::kFailed)];
        return ended;
    };
    for (auto& [key, job] : jobs_) {
        auto ended = end(job.trial);
        if (!ended) continue;
        // The next directives say all that was decided: this must not be in them.
        hold(job, job.trial.decision(), job.trial.decision().before, false);
        return ended;
    }
    for (auto& [name, ground] : grounds_) {
        if (auto ended = end(ground.trial)) return ended;
    }
    return std::nullopt;
}

void Loop::tell(Decision& decision, TickResult& result) {
    if (decision.id == 0) decision.id = ++last_id_;
    decision.window = window_;
    ++counters_.decisions[static_cast<std::size_t>(decision.kind)];
    if (decision.outcome != Outcome::kPending) {
        ++counters_.outcomes[static_cast<std::size_t>(decision.outcome)];
    }
    result.decisions.push_back(decision);
}

void Loop::tell(const DecisionOutcome& outcome, TickResult& result) {
    ++counters_.outcomes[static_cast<std::size_t>(outcome.outcome)];
    result.outcomes.push_back(outcome);
    result.outcomes.back().window = window_;
}

}  // namespace fabricd
