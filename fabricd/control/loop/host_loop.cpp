#include "fabricd/control/loop/host_loop.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/control/policies/host_policy.hpp"
#include "fabricd/control/policies/pool_policy.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

/// Most that a job counts for: of what it says it did before, its usual figure.
constexpr double kMaxPart = 2;

/// Times that the wait after a promise that could not be given back doubles.
constexpr int kDoublings = 4;

using Users = std::span<const QuotaWindow>;

const QuotaWindow* user_of(const std::string& name, Users users) {
    const auto found = std::find_if(users.begin(), users.end(),
                                    [&](const QuotaWindow& user) { return user.name == name; });
    return found == users.end() ? nullptr : &*found;
}

// Whether what was decided is what the users have.
template <typename A>
bool has_values(const A& action, Users users) {
    return std::all_of(action.changes.begin(), action.changes.end(), [&](const auto& change) {
        const QuotaWindow* user = user_of(change.name, users);
        constexpr bool kIsShare = std::is_same_v<A, ComputeShare>;
        if (user == nullptr) return false;
        return (kIsShare ? static_cast<double>(user->percent) : user->quota) ==
               static_cast<double>(change.after);
    });
}

bool is_in(const Quota& action, Users users) {
    return has_values(action, users);
}

bool is_in(const PoolQuota& action, Users users) {
    return has_values(action, users);
}

bool is_in(const CacheQuota& action, Users users) {
    return has_values(action, users);
}

bool is_in(const ComputeShare& action, Users users) {
    return has_values(action, users);
}

// Of shards their homes say it, and what jobs do is in their own windows: see settle_moves(), Loop.
bool is_in(const Placement&, Users) {
    return true;
}

template <typename A>
requires(A::kInfo.scope != ActionScope::kHost) bool is_in(const A&, Users) {
    return true;
}

/// None of another action than of shards.
std::vector<NamedChange<std::uint32_t>> moves_of(const Decision& decision) {
    const auto* placement = action_as<Placement>(decision);
    return placement != nullptr ? placement->changes : std::vector<NamedChange<std::uint32_t>>{};
}

}  // namespace

void HostPace::begin() noexcept {
    pace_.clear();
    fresh_ = stirred_ = false;
    jobs_before_ = std::exchange(jobs_, 0);
}

void HostPace::add(const JobState& job) {
    if (job.windows == 0) return;
    // Begun again after each directive: until then what it did last is the best guess.
    const bool is_known = job.objective.known() && job.objective.mean > 0;
    pace_.push_back({job.objective_now, is_known ? job.objective.mean : job.objective_now,
                     static_cast<double>(job.ranks.size())});
    fresh_ = fresh_ || job.fresh;
    // Any change of the set changes this: multiplied in turn, so that the order counts as well,
    // which is that of the keys. By 64-bit FNV's prime.
    for (const std::uint64_t part : {job.arena, job.group}) {
        jobs_ = ((jobs_ + 1) ^ part) * 0x100000001b3;
    }
}

void HostPace::end(double weight) {
    if (jobs_ != jobs_before_) part_ = Ewma{};
    if (fresh_) part_.update(part_of(usual()), weight);
}

double HostPace::objective() const noexcept {
    double sum = 0;
    for (const Job& job : pace_) sum += job.usual;
    return sum;
}

std::vector<double> HostPace::usual() const {
    std::vector<double> usual;
    usual.reserve(pace_.size());
    for (const Job& job : pace_) usual.push_back(job.usual);
    return usual;
}

double HostPace::part_of(const std::vector<double>& before) const noexcept {
    double parts = 0;
    double ranks = 0;
    for (std::size_t i = 0; i < std::min(before.size(), pace_.size()); ++i) {
        // What did nothing before can only have become better, and shows nothing.
        if (!(before[i] > 0)) continue;
        const double part = pace_[i].now / before[i];
        // Written so that a NaN counts as nothing done.
        parts += pace_[i].ranks * (part > 0 ? std::min(part, kMaxPart) : 0);
        ranks += pace_[i].ranks;
    }
    return ranks > 0 ? parts / ranks : 1;
}

double HostPace::noise(double least) const noexcept {
    const double scatter = part_.mean > 0 ? part_.deviation / part_.mean : 0;
    return std::max(scatter, least);
}

HostLoop::Told HostLoop::tick(const Window& window, double weight, std::uint64_t& last_id) {
    Told result;
    pace_.end(weight);
    tick_vgpus(window, result, last_id);
    tick_pool(window, result, last_id);
    tick_caches(window, result, last_id);
    tick_shards(window, weight, result, last_id);
    return result;
}

bool HostLoop::allows(ActionKind kind) const {
    return has_word(config_.actions, info_of(kind).permission);
}

bool HostLoop::may(const Ground& ground, ActionKind kind) const {
    return allows(kind) && ground.trial.may(kind);
}

void HostLoop::tick_vgpus(const Window& window, Told& result, std::uint64_t& last_id) {
    for (QuotaDevice device : window.devices) {
        Ground& ground = gpus_[device.name];
        ground.promises.complete(device.users, static_cast<double>(config_.half_life));
        if (give_back_on(ground, device, result, last_id)) continue;
        const Progress progress = progress_of(ground.trial, device.users);
        if (judge(ground, progress, device.users, result, last_id)) continue;
        std::optional<Decision> proposal;
        for (const VgpuAction& action : kVgpuActions) {
            if (!proposal && may(ground, action.kind)) proposal = action.propose(device, config_);
        }
        if (proposal) begin(ground, std::move(*proposal), result, last_id);
    }
}

// True when this window has had its action.
bool HostLoop::give_back_on(Ground& ground, const QuotaDevice& device, Told& result,
                            std::uint64_t& last_id) {
    return std::any_of(
        std::begin(kVgpuActions), std::end(kVgpuActions), [&](const VgpuAction& action) {
            return allows(action.kind) &&
                   give_back(ground, action.propose_returns(device, config_), result, last_id);
        });
}

void HostLoop::tick_pool(const Window& window, Told& result, std::uint64_t& last_id) {
    PoolWindow pool = window.pool;
    pool_.promises.complete(pool.devices, static_cast<double>(config_.half_life));
    if (allows(ActionKind::kPoolQuota) &&
        give_back(pool_, propose_pool_returns(pool, config_), result, last_id)) {
        return;
    }
    const Users users = pool.devices;
    if (judge(pool_, progress_of(pool_.trial, users), users, result, last_id)) return;
    if (!may(pool_, ActionKind::kPoolQuota)) return;
    if (auto proposal = propose_pool_quotas(pool, config_)) {
        begin(pool_, std::move(*proposal), result, last_id);
    }
}

// What jobs lack comes back to them whatever is on probation; what a cache gets is judged by what
// the jobs get done with it.
void HostLoop::tick_caches(const Window& window, Told& result, std::uint64_t& last_id) {
    const CacheRoomWindow& room = window.room;
    if (room.caches.empty() || !is_sound(room)) return;
    update(cache_memory_, room, config_);
    std::vector<QuotaWindow> users;
    for (const CacheWindow& cache : room.caches) {
        QuotaWindow user;
        user.name = cache.name;
        user.quota = cache.quota;
        // All else it gives when it is asked.
        user.used = std::min(cache.floor, cache.quota);
        users.push_back(std::move(user));
    }
    if (allows(ActionKind::kCacheQuota) &&
        give_back(caches_, propose_cache_gifts(room, cache_memory_, config_), result, last_id)) {
        return;
    }
    if (judge(caches_, progress_of(caches_.trial, users), users, result, last_id)) return;
    if (!may(caches_, ActionKind::kCacheQuota)) return;
    if (auto proposal = propose_cache_quotas(room, cache_memory_, config_)) {
        begin(caches_, std::move(*proposal), result, last_id);
    }
}

// Promises come back whatever is on probation, and nothing has to be judged about them: an owner's
// need is no bet. True when this window has had its action.
bool HostLoop::give_back(Ground& ground, std::optional<Decision> proposal, Told& result,
                         std::uint64_t& last_id) {
    if (!proposal) return false;
    if (ground.rests > 0) {
        --ground.rests;
        return false;
    }
    proposal->id = ++last_id;
    proposal->objective = proposal->promised = pace_.objective();
    if (config_.mode != "on") {
        proposal->outcome = Outcome::kNotApplied;
        ground.rests = config_.cool_down;
    } else {
        ground.trial.pass();
        if (const auto ended = ground.trial.interrupt("a promise had to be kept meanwhile")) {
            result.outcomes.push_back(*ended);
        }
        ground.promises.note(*proposal);
        FABRIC_CHECK(!ground.trial.running());
        ground.given_back = proposal->id;
        if (!std::exchange(ground.failed, false)) ground.failures = 0;
    }
    result.decisions.push_back(std::move(*proposal));
    return true;
}

void HostLoop::tick_shards(const Window& window, double weight, Told& result,
                           std::uint64_t& last_id) {
    // Also while nothing may be done: what is known by then was measured meanwhile.
    const PlacementWindow known = watch_.update(window.placement, config_, weight);
    Progress progress = Progress::kInForce;
    if (shards_.trial.running()) progress = settle_moves(window.placement);
    if (progress == Progress::kLost) {
        shards_.trial.pass();
        result.outcomes.push_back(fail_moves("it did not come about, see the log"));
        return;
    }
    if (judge(shards_, progress, {}, result, last_id)) return;
    if (!may(shards_, ActionKind::kPlacement)) return;
    if (auto proposal = propose_moves(known)) {
        begin(shards_, std::move(*proposal), result, last_id);
    }
}

std::optional<Decision> HostLoop::propose_moves(const PlacementWindow& known) const {
    const PlacementWindow first = watch_.without_refused(known);
    auto proposal = propose_placement(first, config_);
    if (proposal || first.shards.size() == known.shards.size()) return proposal;
    return propose_placement(known, config_);
}

// A move takes as long as its copy; where the shard is then says whether it has come about. One
// that has not, or is gone, leaves the verdict to the others.
HostLoop::Progress HostLoop::settle_moves(const PlacementWindow& now) {
    Trial& trial = shards_.trial;
    FABRIC_CHECK(trial.running());
    Progress progress = Progress::kInForce;
    // A copy: what is settled is dropped from the trial's own.
    const std::vector<NamedChange<std::uint32_t>> moves = moves_of(trial.decision());
    for (std::size_t i = moves.size(); i-- > 0;) {
        const auto& move = moves[i];
        const auto shard =
            std::find_if(now.shards.begin(), now.shards.end(),
                         [&](const ShardWindow& other) { return other.name == move.name; });
        const bool is_known = shard != now.shards.end();
        if (is_known && shard->home == move.after) {
            shards_.arrived.insert(move.name);
            continue;
        }
        if (is_known && shard->moving) {
            progress = Progress::kUnderWay;
            continue;
        }
        // What another order has moved, back home or elsewhere, was not refused.
        const bool stayed =
            is_known && shard->home == move.before && !shards_.arrived.contains(move.name);
        if (stayed) watch_.refuse(move.name, config_.cool_down);
        trial.drop(i);
        ++shards_.dropped;
    }
    if (!moves_of(trial.decision()).empty()) return progress;
    return shards_.arrived.empty() ? Progress::kLost : Progress::kReplaced;
}

// Whether what was decided is what holds: people set quotas and shares, too.
HostLoop::Progress HostLoop::progress_of(const Trial& trial, Users users) {
    if (!trial.running()) return Progress::kInForce;
    const bool holds = std::visit([&](const auto& action) { return is_in(action, users); },
                                  trial.decision().action);
    return holds ? Progress::kInForce : Progress::kReplaced;
}

// Why nothing can be said of the action on this ground any more; nothing while it can.
const char* HostLoop::interruption_of(const Ground& ground, Progress progress) const {
    // Also without jobs: it must not be taken for what holds.
    if (progress == Progress::kReplaced) return "it was changed from outside meanwhile";
    const bool has_judges = ground.trial.decision().objective > 0;
    const bool is_void = has_judges && (pace_.jobs() != ground.jobs || pace_.stirred());
    return is_void ? "the jobs of the host changed meanwhile" : nullptr;
}

// True when this window has had its action: something was rolled back, or broken off.
bool HostLoop::judge(Ground& ground, Progress progress, Users users, Told& result,
                     std::uint64_t& last_id) {
    Trial& trial = ground.trial;
    trial.pass();
    if (!trial.running() || progress == Progress::kUnderWay) return false;
    if (const char* why = interruption_of(ground, progress)) {
        result.outcomes.push_back(*trial.interrupt(why));
        // Else the same would be proposed in this very window, and a host on which jobs come and go
        // would be changed step after step without any verdict.
        trial.wait(kind_of(trial.decision()), std::max(config_.cool_down, config_.probation));
        return true;
    }
    const bool has_judges = trial.decision().objective > 0;
    if (has_judges && !pace_.fresh()) return false;
    // In samples/s like the promise, which all jobs' usual ones make up.
    const double measured = trial.decision().objective * pace_.part_of(ground.usual);
    auto ended = trial.judge(measured, true, config_.probation, config_.cool_down);
    if (!ended) return false;
    FABRIC_CHECK(!trial.running());  // a verdict is the end of it
    if (!has_judges && ended->outcome == Outcome::kKept) {
        // Nothing was promised and nothing broken.
        ended->outcome = Outcome::kUnjudged;
        ended->reason = "no job trained meanwhile";
    }
    std::optional<Decision> back;
    if (ended->outcome == Outcome::kUndone) back = taking_back(trial.decision(), users);
    if (ended->outcome == Outcome::kUndone && !back) {
        ended->outcome = Outcome::kUnjudged;
        ended->reason += ", but all that it gave is in use";
    }
    if (ground.dropped > 0) ended->reason += "; some of its shards did not move";
    result.outcomes.push_back(*ended);
    if (!back) return false;
    FABRIC_CHECK(back->undoes == trial.decision().id);
    back->id = ++last_id;
    ground.promises.note(*back);
    result.decisions.push_back(std::move(*back));
    return true;
}

void HostLoop::begin(Ground& ground, Decision decision, Told& result, std::uint64_t& last_id) {
    FABRIC_CHECK(allows(kind_of(decision)) && !ground.trial.running());  // see may()
    decision.id = ++last_id;
    decision.objective = pace_.objective();
    decision.promised = pace_.objective();  // it must not harm
    if (config_.mode != "on") {
        // Nothing is on probation, since nothing happened.
        decision.outcome = Outcome::kNotApplied;
        ground.trial.wait(kind_of(decision), config_.cool_down);
    } else {
        // Many jobs make up this objective, and it scatters with all of them.
        ground.trial.begin(decision, pace_.noise(2 * config_.noise_floor));
        ground.jobs = pace_.jobs();
        ground.usual = pace_.usual();
        ground.dropped = 0;
        ground.arrived.clear();
        ground.promises.note(decision);
    }
    result.decisions.push_back(std::move(decision));
}

// Each of the shards rests on its own account. The kind waits only for as long as the log can bear:
// others may well be moved.
DecisionOutcome HostLoop::fail_moves(const std::string& why) {
    for (const auto& move : moves_of(shards_.trial.decision())) {
        watch_.refuse(move.name, config_.cool_down);
    }
    return shards_.trial.fail(why, std::min(config_.probation, config_.cool_down));
}

std::optional<DecisionOutcome> HostLoop::failed(std::uint64_t decision, const std::string& why) {
    const auto end = [&](Ground& ground) -> std::optional<DecisionOutcome> {
        Trial& trial = ground.trial;
        if (ground.given_back == decision) {
            // Mostly a tenant took memory between look and action: soon again, and not so often
            // that the log fills.
            ground.failed = true;
            ground.failures = std::min(ground.failures + 1, kDoublings);
            ground.rests = std::min((std::int64_t{1} << ground.failures) - 1, config_.cool_down);
            return DecisionOutcome{decision, 0, Outcome::kFailed, 0, why};
        }
        if (!trial.running() || trial.decision().id != decision) return std::nullopt;
        return trial.fail(why, config_.cool_down);
    };
    for (auto& [name, ground] : gpus_) {
        if (auto ended = end(ground)) return ended;
    }
    if (auto ended = end(pool_)) return ended;
    if (auto ended = end(caches_)) return ended;
    const Trial& moves = shards_.trial;
    if (!moves.running() || moves.decision().id != decision) return std::nullopt;
    return fail_moves(why);
}

}  // namespace fabricd
