#include "fabricd/control/host_loop.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/control/host_policy.hpp"
#include "fabricd/control/pool_policy.hpp"

namespace fabricd {

void HostPace::begin() noexcept {
    sum_ = 0;
    fresh_ = stirred_ = false;
    jobs_before_ = std::exchange(jobs_, 0);
}

void HostPace::add(const JobState& job) noexcept {
    if (job.windows == 0) return;
    sum_ += job.objective_now;
    fresh_ = fresh_ || job.fresh;
    // Any change of the set changes this: multiplied in turn, so that the order counts as well,
    // which is that of the keys. By 64-bit FNV's prime.
    for (const std::uint64_t part : {job.arena, job.group}) {
        jobs_ = ((jobs_ + 1) ^ part) * 0x100000001b3;
    }
}

void HostPace::end(double weight) {
    if (jobs_ != jobs_before_) usual_ = Ewma{};
    if (fresh_) usual_.update(sum_, weight);
}

double HostPace::noise(double least) const noexcept {
    const double scatter = usual_.mean > 0 ? usual_.deviation / usual_.mean : 0;
    return std::max(scatter, least);
}

HostLoop::Told HostLoop::tick(const Window& window, double weight, std::uint64_t& last_id) {
    Told result;
    pace_.end(weight);
    tick_vgpus(window, result, last_id);
    tick_pool(window, result, last_id);
    tick_shards(window, weight, result, last_id);
    return result;
}

bool HostLoop::may(const Ground& ground, ActionKind kind) const {
    return has_word(config_.actions, word_of(kind)) && ground.trial.may(kind);
}

void HostLoop::tick_vgpus(const Window& window, Told& result, std::uint64_t& last_id) {
    for (const QuotaDevice& device : window.devices) {
        Ground& ground = gpus_[device.name];
        if (judge(ground, Progress::kInForce, result, last_id)) continue;
        std::optional<Decision> proposal;
        // Memory before compute: a refused allocation ends a job, a small share only slows it.
        if (may(ground, ActionKind::kQuota)) proposal = propose_quotas(device, config_);
        if (!proposal && may(ground, ActionKind::kComputeShare)) {
            proposal = propose_compute_shares(device, config_);
        }
        if (proposal) begin(ground, std::move(*proposal), result, last_id);
    }
}

void HostLoop::tick_pool(const Window& window, Told& result, std::uint64_t& last_id) {
    if (judge(pool_, Progress::kInForce, result, last_id)) return;
    if (!may(pool_, ActionKind::kPoolQuota)) return;
    if (auto proposal = propose_pool_quotas(window.pool, config_)) {
        begin(pool_, std::move(*proposal), result, last_id);
    }
}

void HostLoop::tick_shards(const Window& window, double weight, Told& result,
                           std::uint64_t& last_id) {
    // Also while nothing may be done: what is known by then was measured meanwhile.
    const PlacementWindow known = watch_.update(window.placement, config_, weight);
    const Progress progress = shards_.trial.running()
                                  ? progress_of(shards_.trial.decision(), window.placement)
                                  : Progress::kInForce;
    if (judge(shards_, progress, result, last_id)) return;
    if (!may(shards_, ActionKind::kPlacement)) return;
    if (auto proposal = propose_placement(known, config_)) {
        begin(shards_, std::move(*proposal), result, last_id);
    }
}

// A move takes as long as its copy; where the shard is then says whether it has come about.
HostLoop::Progress HostLoop::progress_of(const Decision& decision, const PlacementWindow& now) {
    Progress progress = Progress::kInForce;
    for (std::size_t i = 0; i < decision.names.size(); ++i) {
        const auto shard =
            std::find_if(now.shards.begin(), now.shards.end(),
                         [&](const ShardWindow& other) { return other.name == decision.names[i]; });
        const bool is_there =
            shard != now.shards.end() && static_cast<double>(shard->home) == decision.after[i];
        if (is_there) continue;
        const bool is_under_way = shard != now.shards.end() && shard->moving;
        if (!is_under_way) return Progress::kLost;
        progress = Progress::kUnderWay;
    }
    return progress;
}

// True when this window has had its action: something was taken back.
bool HostLoop::judge(Ground& ground, Progress progress, Told& result, std::uint64_t& last_id) {
    Trial& trial = ground.trial;
    trial.pass();
    if (!trial.running() || progress == Progress::kUnderWay) return false;
    const bool has_judges = trial.decision().objective > 0;
    std::optional<DecisionOutcome> ended;
    if (progress == Progress::kLost) {
        ended = trial.fail("it did not come about, see the log", config_.cool_down);
    } else if (has_judges && (pace_.jobs() != ground.jobs || pace_.stirred())) {
        ended = trial.interrupt("the jobs of the host changed meanwhile");
    } else if (!has_judges || pace_.fresh()) {
        ended = trial.judge(pace_.objective(), true, config_.probation, config_.cool_down);
    }
    if (!ended) return false;
    if (!has_judges && ended->outcome == Outcome::kKept) {
        // Nothing was promised and nothing broken.
        ended->outcome = Outcome::kUnjudged;
        ended->reason = "no job trained meanwhile";
    }
    result.outcomes.push_back(*ended);
    if (ended->outcome != Outcome::kUndone) return false;
    Decision back = trial.decision();
    back.undoes = back.id;
    std::swap(back.before, back.after);
    back.facts.clear();
    back.reason = "takes back decision " + std::to_string(back.undoes);
    back.outcome = Outcome::kDone;
    back.measured = 0;
    back.id = ++last_id;
    result.decisions.push_back(std::move(back));
    return true;
}

void HostLoop::begin(Ground& ground, Decision decision, Told& result, std::uint64_t& last_id) {
    decision.id = ++last_id;
    decision.objective = pace_.objective();
    decision.promised = pace_.objective();  // it must not harm
    if (config_.mode != "on") {
        // Nothing is on probation, since nothing happened.
        decision.outcome = Outcome::kNotApplied;
        ground.trial.wait(decision.kind, config_.cool_down);
    } else {
        // Many jobs make up this objective, and it scatters with all of them.
        ground.trial.begin(decision, pace_.noise(2 * config_.noise_floor));
        ground.jobs = pace_.jobs();
    }
    result.decisions.push_back(std::move(decision));
}

std::optional<DecisionOutcome> HostLoop::failed(std::uint64_t decision, const std::string& why) {
    const auto end = [&](Ground& ground) -> std::optional<DecisionOutcome> {
        Trial& trial = ground.trial;
        if (!trial.running() || trial.decision().id != decision) return std::nullopt;
        return trial.fail(why, config_.cool_down);
    };
    for (auto& [name, ground] : gpus_) {
        if (auto ended = end(ground)) return ended;
    }
    if (auto ended = end(pool_)) return ended;
    return end(shards_);
}

}  // namespace fabricd
