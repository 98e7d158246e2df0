#include "fabricd/control/loop/loop.hpp"

#include <algorithm>

#include "fabricd/control/policies/host_policy.hpp"
#include "fabricd/control/policies/job_actions.hpp"
#include "fabricd/control/policies/job_policy.hpp"
#include "fabricd/control/policies/share_plan.hpp"
#include "fabricd/control/policies/slow_ranks.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

/// Speeds of ended sessions that are kept; a group that shrinks comes back within a few windows.
constexpr std::size_t kRemembered = 8192;
/// Below this the first windows of a job are start-up: compilers warm up, caches fill.
constexpr std::int64_t kWarmUpWindows = 3;

/// Windows after a directive came into force in which a rank's speed may have changed because of
/// it.
constexpr std::int64_t kOwnDoing = 3;

/// Windows in a row that wait for the next one to show whether a rank is slow or was held up.
constexpr std::int64_t kMaxDoubt = 2;

/// Times that a probation begins again because speeds changed.
constexpr int kPromises = 4;

/// A share that rose by less is no cause of anything.
constexpr double kShareRise = 0.01;

// The journal and the list of recent decisions are by id, and a directive is journalled with its
// decision before it is carried out.
[[maybe_unused]] bool is_in_order(const TickResult& result) {
    const auto& all = result.decisions;
    const auto by_id = [](const Decision& a, const Decision& b) { return a.id < b.id; };
    const auto has_decision = [&](const Directive& directive) {
        return std::any_of(all.begin(), all.end(), [&](const Decision& decision) {
            return decision.id == directive.decision && decision.serial == directive.serial;
        });
    };
    return std::is_sorted(all.begin(), all.end(), by_id) &&
           std::all_of(result.directives.begin(), result.directives.end(), has_decision);
}

double noise_of(const Ewma& objective, const ControlConfig& config) {
    const double scatter = objective.mean > 0 ? objective.deviation / objective.mean : 0;
    return std::max(scatter, config.noise_floor);
}

}  // namespace

Loop::Loop(ControlConfig config, std::uint64_t last_id)
    : config_(std::move(config)), weights_(config_), last_id_(last_id), host_(config_) {
    // Once: looking for words in each window of each job would cost more than deciding.
    for (std::size_t kind = 1; kind < kActionKinds; ++kind) {
        allowed_[kind] = has_word(config_.actions, kActions[kind].permission);
    }
}

TickResult Loop::tick(const Window& window) {
    TickResult result;
    window_ = window.number;
    ++counters_.windows;
    forget_ended(window);
    host_.pace().begin();
    counters_.stale_jobs = 0;
    counters_.alarmed_ranks = 0;
    for (const JobWindow& seen : window.jobs) {
        if (JobState* job = job_of(seen)) tick_job(*job, seen, result);
    }
    counters_.jobs = jobs_.size();
    HostLoop::Told told = host_.tick(window, weights_.level, last_id_);
    for (const DecisionOutcome& outcome : told.outcomes) tell(outcome, result);
    for (Decision& decision : told.decisions) tell(std::move(decision), result);
    FABRIC_CHECK(!is_dry() || result.directives.empty());
    FABRIC_DCHECK(is_in_order(result));
    return result;
}

// Jobs whatever is allowed: those of the host are what actions beyond one job are judged by.
bool Loop::watches(const Window& window) const noexcept {
    const bool has_vgpus =
        !window.devices.empty() &&
        std::any_of(std::begin(kVgpuActions), std::end(kVgpuActions),
                    [this](const VgpuAction& action) { return allows(action.kind); });
    const bool has_pool = !window.pool.devices.empty() && allows(ActionKind::kPoolQuota);
    const bool has_caches = !window.room.caches.empty() && allows(ActionKind::kCacheQuota);
    return !window.jobs.empty() || !window.placement.shards.empty() || has_vgpus || has_pool ||
           has_caches;
}

void Loop::remember(const JobState& job) {
    for (const RankState& rank : job.ranks) remembered_[rank.session] = rank;
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
        remember(known->second);
        known = jobs_.erase(known);
    }
}

// Nothing for half of a group that was never whole: its other ranks may be elsewhere or not there
// yet. One that was whole goes on, and becomes stale: what is on probation there has to end.
JobState* Loop::job_of(const JobWindow& window) {
    const JobKey key{window.arena, window.group};
    const auto known = jobs_.find(key);
    if (!window.is_whole()) return known == jobs_.end() ? nullptr : &known->second;
    if (known != jobs_.end()) {
        if (known->second.is_of(window)) return &known->second;
        // Other sessions in the old places: directives for those would reach no rank.
        remember(known->second);
        jobs_.erase(known);
    }
    JobState& job = jobs_[key] = new_job(window);
    for (RankState& rank : job.ranks) {
        const auto before = remembered_.find(rank.session);
        if (before == remembered_.end()) continue;
        // What was measured goes along; what was decided about it as a member of that group not,
        // but for the serial, which its page has.
        rank.sample_s = before->second.sample_s;
        rank.fixed_samples = before->second.fixed_samples;
        rank.gradients = before->second.gradients;
        job.serial_seen = std::max(job.serial_seen, before->second.serial_sent);
        remembered_.erase(before);
    }
    return &job;
}

void Loop::tick_job(JobState& job, const JobWindow& window, TickResult& result) {
    observe(job, window, config_, weights_);
    for (const RankState& rank : job.ranks) {
        counters_.alarmed_ranks += rank.alarmed || rank.faults != 0 ? 1 : 0;
    }
    // Also of a job that makes no steps: a device that stopped may be why.
    if (auto alarm = watch_for_fault(job)) {
        alarm->outcome = Outcome::kDone;
        tell(std::move(*alarm), result);
    }
    if (job.is_stale(config_)) {
        // Fail static: what was said last stays, and nothing is concluded from silence.
        ++counters_.stale_jobs;
        if (const auto ended = job.trial.interrupt("no news of the job")) tell(*ended, result);
        return;
    }
    host_.pace().add(job);
    if (!job.fresh) return;
    // From here on the window counts for cool-downs.
    job.trial.pass();
    judge_job(job, result);
    // What was undone, was so at other speeds. But not for what an action itself did to them.
    if (job.any_changed() && job.acted > kOwnDoing) job.trial.forgive(ActionKind::kBatchShares);
    if (job.windows >= kWarmUpWindows) decide_job(job, result);
}

void Loop::judge_job(JobState& job, TickResult& result) {
    resume_job(job);
    if (!job.trial.running()) return;
    // What a step costs is known better now, and with it what could be hoped for.
    if (job.has_learned) promise_again(job, true);
    if (job.any_changed()) {
        answer_speed_change(job, result);
        return;
    }
    // A value far off is a glitch or a new speed: the next window shows which, and whether this one
    // says anything about the action.
    const bool is_doubtful = job.any_suspect() && job.doubtful < kMaxDoubt;
    job.doubtful = is_doubtful ? job.doubtful + 1 : 0;
    if (is_doubtful) return;
    const auto ended =
        job.trial.judge(job.objective_now, job.in_force(), config_.probation, config_.cool_down);
    if (!ended) return;
    tell(*ended, result);
    if (ended->outcome == Outcome::kUndone) undo_job(job, result);
}

// Also what could not be judged in time has to show that it is good, as long as it holds.
void Loop::resume_job(JobState& job) {
    if (!job.trial.can_resume() || !job.in_force()) return;
    const Decision& decision = job.trial.decision();
    const auto* shares = action_as<BatchShares>(decision);
    const bool holds =
        shares != nullptr && shares->after == job.shares && decision.serial == job.serial;
    if (!holds) return job.trial.forget_interrupted();
    const auto [without, with] = outlook(job, *shares);
    job.trial.resume(without, with);
}

// What the job would do without and with the shares on probation, at the speeds of now.
std::pair<double, double> Loop::outlook(const JobState& job, const BatchShares& shares) {
    const Promise promise = promise_of_return(job, shares.before, shares.after);
    return {objective_of(job, shares.before, promise.before_s),
            objective_of(job, shares.after, promise.after_s)};
}

void Loop::promise_again(JobState& job, bool is_same) {
    const auto* shares = action_as<BatchShares>(job.trial.decision());
    if (shares == nullptr) return;
    const auto [without, with] = outlook(job, *shares);
    // What was measured without it is worth more than what is computed.
    job.trial.promise_again(is_same ? job.trial.probation().before : without, with, is_same);
}

// True when the ranks that became slower are those that the action gave more work to, at once when
// it came into force, and no other one changed: a larger share may not fit into a rank's cache.
bool Loop::is_own_doing(const JobState& job) {
    // Only shares can do this: units and intervals do not change what a sample costs.
    const auto* shares = action_as<BatchShares>(job.trial.decision());
    if (shares == nullptr || job.acted > kOwnDoing) return false;
    for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        const RankState& rank = job.ranks[i];
        const bool is_off = rank.changed || (!rank.drained && rank.sample_s.suspect_side != 0);
        const bool has_more = shares->after[i] > shares->before[i] + kShareRise;
        const bool is_slower = !rank.changed || rank.sample_s.mean > rank.sample_s_before;
        if (is_off && !(has_more && is_slower)) return false;
    }
    return true;
}

// A rank that became faster or slower makes the promise void: other shares are the answer, or the
// ones on probation are judged by what they are worth at the new speeds. Unless the action itself
// slowed it.
void Loop::answer_speed_change(JobState& job, TickResult& result) {
    const Probation& probation = job.trial.probation();
    const bool is_worse = job.objective_now < probation.before * (1 - probation.noise);
    if (is_own_doing(job) && is_worse) {
        const auto ended = job.trial.give_up("a rank became slower with its larger share",
                                             job.objective_now, config_.cool_down);
        tell(*ended, result);
        return undo_job(job, result);
    }
    const bool is_shares = action_as<BatchShares>(job.trial.decision()) != nullptr;
    const bool has_answer = is_shares && job.in_force() && propose_shares(job, config_);
    if (is_shares && job.in_force() && !has_answer && job.trial.promised_anew() < kPromises) {
        return promise_again(job, false);
    }
    tell(*job.trial.interrupt("the speed of a rank changed"), result);
    job.trial.forget_interrupted();
}

void Loop::undo_job(JobState& job, TickResult& result) {
    FABRIC_CHECK(!job.trial.running());  // its verdict has ended it
    const Decision undone = job.trial.decision();
    FABRIC_CHECK(undone.serial != 0);  // ranks have heard of it
    // Not judged in its turn: it restores what was there, and a rollback of a rollback is a
    // pendulum.
    Decision back = undone;
    back.action = reversed(undone.action);
    back.undoes = undone.id;
    back.facts.clear();
    back.gain = 0;
    back.objective = job.objective_now;
    back.promised = undone.objective;
    back.reason = "reverses decision " + std::to_string(undone.id);
    back.outcome = Outcome::kDone;
    back.measured = 0;
    direct(job, back, result);
    tell(std::move(back), result);
    job.forget_pace();
}

void Loop::decide_job(JobState& job, TickResult& result) {
    if (auto alarm = watch_for_slow_rank(job, config_)) {
        alarm->outcome = Outcome::kDone;
        tell(std::move(*alarm), result);
        ++counters_.alarmed_ranks;
    }
    if (is_too_large(job, result)) return;
    // What a faulty device computes may be wrong: that is not for a probation to find out.
    if (!is_dry() || job.trial.may(ActionKind::kDrain)) {
        if (auto drain = propose_fault_drain(job, config_)) {
            return take(job, std::move(*drain), result);
        }
    }
    // The loss comes first, and also on top of what is on probation: it is about being right. A dry
    // run has nothing to be in force, and says it once in a while like everything else.
    const bool may_sync =
        allows(ActionKind::kSyncInterval) && (is_dry() ? job.trial.may(ActionKind::kSyncInterval)
                                                       : !job.trial.running() || job.in_force());
    if (may_sync && job.loss.worsens.active() && job.interval() > 1) {
        if (const auto ended = job.trial.interrupt("the loss gets worse")) tell(*ended, result);
        if (auto less = propose_interval(job, config_)) return take(job, std::move(*less), result);
    }
    // Where one rank's speed has changed, and another one's seems to: the next window knows both.
    const bool is_half_known = job.any_changed() && job.any_suspect() && !job.has_hesitated;
    job.has_hesitated = is_half_known;
    // One kind at a time: with two changes at once no verdict could say which of them did it.
    for (const auto& [kind, propose] : job_actions()) {
        // Where slow ranks are not drained, those that are were drained for a fault.
        const bool is_allowed = allows(kind) || kind == ActionKind::kReturn;
        if (!is_allowed || !job.trial.may(kind)) continue;
        // A job that works in units takes no notice of shares.
        const bool is_moot = kind == ActionKind::kBatchShares && allows(ActionKind::kWorkUnits) &&
                             works_in_units(job);
        if (is_moot || (kind == ActionKind::kBatchShares && is_half_known)) continue;
        if (auto decision = propose(job, config_)) return take(job, std::move(*decision), result);
    }
}

// Said once for each job: a decision that fails would be made again and again.
bool Loop::is_too_large(JobState& job, TickResult& result) const {
    const auto ranks = static_cast<std::int64_t>(job.ranks.size());
    if (config_.max_directed == 0 || ranks <= config_.max_directed) return false;
    if (!std::exchange(job.is_size_said, true)) {
        result.notes.push_back(
            "arena " + std::to_string(job.arena) + " group " + std::to_string(job.group) + " has " +
            std::to_string(ranks) + " ranks, and a directive holds " +
            std::to_string(config_.max_directed) + ": it is watched and not directed");
    }
    return true;
}

void Loop::take(JobState& job, Decision decision, TickResult& result) {
    if (is_dry()) {
        // Nothing is on probation, since nothing happened.
        decision.outcome = Outcome::kNotApplied;
        // Once in a while is enough to see what it would do.
        job.trial.wait(kind_of(decision), config_.cool_down);
        return tell(std::move(decision), result);
    }
    const bool is_judged = decision.outcome != Outcome::kDone;
    if (!is_judged) {
        if (const auto ended = job.trial.interrupt("a device failed")) tell(*ended, result);
    }
    direct(job, decision, result);
    FABRIC_CHECK(!job.trial.running());  // what was on probation has been interrupted
    if (is_judged) job.trial.begin(decision, noise_of(job.objective, config_));
    tell(std::move(decision), result);
    job.forget_pace();
}

// Keeps what was decided and says all of it, since a page holds one image.
void Loop::direct(JobState& job, Decision& decision, TickResult& result) {
    FABRIC_CHECK(!is_dry());
    job.acted = 0;
    job.doubtful = 0;
    job.begin_probe();
    apply(job, decision.action, decision.undoes != 0);
    // By rank or not at all: that is how a page is read.
    FABRIC_CHECK(job.shares.empty() || job.shares.size() == job.ranks.size());
    FABRIC_CHECK(job.units.empty() || job.units.size() == job.ranks.size());
    decision.id = ++last_id_;
    // Above all that a session of the job has ever seen, also from another daemon or in another
    // group: a page refuses what does not rise.
    // Of serials that others report only this job's are lifted: one that lies corrupts its own.
    ++last_serial_;
    decision.serial = job.serial = std::max(last_serial_, job.serial_seen + 1);
    job.serial_seen = job.serial;
    host_.pace().stir();
    Directive directive{decision.serial, decision.id, job.arena,        job.group, job.world, {},
                        job.shares,      job.units,   job.sync_interval};
    directive.sessions.reserve(job.ranks.size());
    for (RankState& rank : job.ranks) {
        rank.serial_sent = decision.serial;
        directive.sessions.push_back(rank.session);
    }
    result.directives.push_back(std::move(directive));
}

DecisionOutcome Loop::failed(std::uint64_t decision, const std::string& why) {
    // Not on probation: it took something back, which now holds on.
    DecisionOutcome ended{decision, 0, Outcome::kFailed, 0, why};
    if (const auto known = end_failed(decision, why)) ended = *known;
    ended.window = window_;
    ++counters_.outcomes[static_cast<std::size_t>(Outcome::kFailed)];
    return ended;
}

// By number: the controller knows decisions, not subjects. A handful are on probation at a time.
std::optional<DecisionOutcome> Loop::end_failed(std::uint64_t decision, const std::string& why) {
    for (auto& [key, job] : jobs_) {
        Trial& trial = job.trial;
        if (!trial.running() || trial.decision().id != decision) continue;
        // The next directives say all that was decided: this must not be in them.
        apply(job, reversed(trial.decision().action), true);
        return trial.fail(why, config_.cool_down);
    }
    return host_.failed(decision, why);
}

void Loop::tell(Decision decision, TickResult& result) {
    if (decision.id == 0) decision.id = ++last_id_;
    FABRIC_CHECK(decision.id <= last_id_);  // or its number would come again
    FABRIC_CHECK(!is_dry() || decision.outcome != Outcome::kPending);  // nothing is on probation
    decision.window = window_;
    ++counters_.decisions[static_cast<std::size_t>(kind_of(decision))];
    if (decision.outcome != Outcome::kPending) {
        ++counters_.outcomes[static_cast<std::size_t>(decision.outcome)];
    }
    result.decisions.push_back(std::move(decision));
}

void Loop::tell(const DecisionOutcome& outcome, TickResult& result) {
    ++counters_.outcomes[static_cast<std::size_t>(outcome.outcome)];
    result.outcomes.push_back(outcome);
    result.outcomes.back().window = window_;
}

}  // namespace fabricd
