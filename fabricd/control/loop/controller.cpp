#include "fabricd/control/loop/controller.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::log;
using fabricshm::LogLevel;
using fabricshm::Result;

namespace {

/// Decisions that can be asked for. Some kilobytes each at most.
constexpr std::size_t kRecent = 1000;

// For people only. What is decided depends on the windows' own clock.
std::int64_t unix_ms() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// At the moment of the decision, whatever comes of it: the log is what people read first.
void log_decision(const Decision& decision) {
    const bool is_alarm = kind_of(decision) == ActionKind::kAlarm;
    log(is_alarm ? LogLevel::kWarning : LogLevel::kInfo, "control: decision %llu, %s: %s%s",
        static_cast<unsigned long long>(decision.id), name_of(kind_of(decision)),
        decision.reason.c_str(),
        decision.outcome == Outcome::kNotApplied ? " (dry run, not applied)" : "");
}

// Where another change of a quota came first, the step says all there is to say.
std::string why_not(const Decision& decision, const Error& error) {
    const bool is_quota =
        action_as<Quota>(decision) != nullptr || action_as<PoolQuota>(decision) != nullptr;
    return is_quota && error.code == Errc::kBusy ? error.step : fabricshm::describe(error);
}

// Away from the names that the journal goes on with; one that was renamed before is replaced.
void put_aside(const JournalStory::BadFile& bad) {
    log(LogLevel::kError, "%s: %s; it is renamed to %s.bad", bad.path.c_str(),
        fabricshm::describe(bad.why).c_str(), bad.path.c_str());
    // If that fails as well, opening it says so.
    (void)std::rename(bad.path.c_str(), (bad.path + ".bad").c_str());
}

}  // namespace

Result<void> Actuators::direct(const Directive&) {
    return Error{Errc::kUnsupported, 0, "direct a job"};
}

Result<void> Actuators::move_shard(const std::string&, const std::string&) {
    return Error{Errc::kUnsupported, 0, "move a shard"};
}

Result<void> Actuators::shift_quotas(const Quota&) {
    return Error{Errc::kUnsupported, 0, "shift quotas"};
}

Result<void> Actuators::shift_pool_quotas(const PoolQuota&) {
    return Error{Errc::kUnsupported, 0, "shift quotas of the pool"};
}

Result<void> Actuators::shift_cache_quotas(const CacheQuota&) {
    return Error{Errc::kUnsupported, 0, "shift quotas of caches"};
}

Result<void> Actuators::set_compute_share(const std::string&, unsigned) {
    return Error{Errc::kUnsupported, 0, "set a compute share"};
}

Controller::Controller(ControlConfig config, ControllerParts parts) : parts_(std::move(parts)) {
    std::uint64_t last_id = 0;
    if (!parts_.journal_path.empty()) {
        const auto story = read_decision_journal(parts_.journal_path);
        if (story.ok()) {
            // Of what can be read: the other file knows the last number as well.
            last_id = story->last_id;
            for (const auto& bad : story->bad) put_aside(bad);
            for (const Decision& decision : story->decisions) {
                recent_.push_back(decision);
                if (recent_.size() > kRecent) recent_.pop_front();
            }
        }
    }
    // What was on probation when the last daemon ended will never be judged.
    for (Decision& decision : recent_) {
        if (decision.outcome != Outcome::kPending) continue;
        decision.outcome = Outcome::kUnjudged;
        decision.outcome_reason = "the daemon ended";
    }
    first_id_ = last_id;
    loop_.emplace(std::move(config), last_id);
}

Controller::~Controller() {
    stop();
}

void Controller::start() {
    FABRIC_CHECK(!thread_.joinable());
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "fabric-loop");
}

void Controller::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Controller::run() {
    auto next = Clock::now();
    for (;;) {
        step();
        // A window that came late is not made up for: two short ones would show nothing.
        next = std::max(next + loop_->config().window, Clock::now());
        std::unique_lock lock(mutex_);
        if (wake_.wait_until(lock, next, [this] { return stopping_; })) return;
    }
}

void Controller::step() {
    Window window;
    bool is_new = false;
    parts_.look([&](const Sample& sample) {
        // Of one sample there is one window: the next would say that no rank made a step.
        is_new = sample.number != last_sample_;
        last_sample_ = sample.number;
        if (is_new) window = maker_.next(sample);
    });
    if (!is_new) return;
    if (parts_.complete) parts_.complete(window);
    TickResult result = loop_->tick(window);
    for (Decision& decision : result.decisions) decision.unix_ms = unix_ms();
    // A host on which nothing goes on leaves no file and writes nothing, but the first window in
    // which nothing is: a replay has to see what was there end.
    const bool has_news = loop_->watches(window);
    const bool had_news = std::exchange(had_news_, has_news);
    if (has_news || had_news || !result.decisions.empty()) write(window);
    // In the order of what happened, and before it is carried out: a daemon that is killed while it
    // acts has said what it was about to do.
    for (const DecisionOutcome& outcome : result.outcomes) write(outcome);
    for (const Decision& decision : result.decisions) {
        log_decision(decision);
        write(decision);
    }
    for (const std::string& note : result.notes) {
        log(LogLevel::kWarning, "control: %s", note.c_str());
    }
    remember(result);
    for (const Decision& decision : result.decisions) {
        if (const auto failed = act(decision, result, window)) {
            write(*failed);
            const std::lock_guard lock(mutex_);
            remember(*failed);
        }
    }
    const std::lock_guard lock(mutex_);
    counters_ = loop_->counters();
    counters_.not_journalled = not_journalled_;
    counters_.shards_left_out = window.placement.left_out;
}

// Opened when there is something to say.
void Controller::open_journal() {
    if (journal_ || journal_failed_ || parts_.journal_path.empty()) return;
    auto opened = DecisionJournal::open(parts_.journal_path, loop_->config().journal_bytes,
                                        parts_.settings, first_id_);
    if (opened.ok()) {
        journal_.emplace(std::move(*opened));
        return;
    }
    // Tried once: a folder that cannot be written to would fill the log in every window.
    journal_failed_ = true;
    log(LogLevel::kError, "no decision journal: %s", fabricshm::describe(opened.error()).c_str());
}

template <typename Record>
void Controller::write(const Record& record) {
    open_journal();
    if (!journal_) return;
    const auto done = journal_->add(record);
    if (done.ok()) return;
    if (done.error().code == Errc::kInvalid) {
        // Too large, this one. Said once: the next window is mostly as large.
        if (++not_journalled_ == 1) {
            log(LogLevel::kWarning,
                "a record is too large for the decision journal and left out; "
                "control.journal_bytes makes it larger");
        }
        return;
    }
    // A full disk must not stop the control of what trains: the journal ends here, once.
    log(LogLevel::kError, "the decision journal ends: %s",
        fabricshm::describe(done.error()).c_str());
    journal_.reset();
    journal_failed_ = true;
}

std::optional<DecisionOutcome> Controller::act(const Decision& decision, const TickResult& result,
                                               const Window& window) {
    FABRIC_CHECK(decision.id != 0);  // the loop numbered it, and it has been journalled
    const bool nothing_to_do =
        decision.outcome == Outcome::kNotApplied || kind_of(decision) == ActionKind::kAlarm;
    if (nothing_to_do || parts_.actuators == nullptr) return std::nullopt;
    Result<void> done;
    if (decision.serial != 0) {
        const auto directive = std::find_if(
            result.directives.begin(), result.directives.end(),
            [&](const Directive& candidate) { return candidate.decision == decision.id; });
        FABRIC_CHECK(directive != result.directives.end());  // see Loop::direct()
        done = parts_.actuators->direct(*directive);
    } else {
        done = act_on_host(decision, window);
    }
    if (done.ok()) return std::nullopt;
    const std::string why = why_not(decision, done.error());
    log(LogLevel::kWarning, "control: decision %llu failed: %s",
        static_cast<unsigned long long>(decision.id), why.c_str());
    return loop_->failed(decision.id, why);
}

Result<void> Controller::act_on_host(const Decision& decision, const Window& window) {
    const auto act = [&](const auto& action) -> Result<void> {
        using A = std::decay_t<decltype(action)>;
        // A kind of the host's scope without a function of its own does not compile.
        if constexpr (A::kInfo.scope == ActionScope::kHost) {
            return carry_out(action, decision, window);
        } else {
            return Error{Errc::kUnsupported, 0, "act on a decision"};
        }
    };
    return std::visit(act, decision.action);
}

// Each for itself: a shard that can't move says nothing about the others, and one that moves is
// right where it was sent. What became of each is in the windows that follow. Refused only when no
// move has begun.
Result<void> Controller::carry_out(const Placement& action, const Decision& decision,
                                   const Window& window) {
    Result<void> refused;
    bool any_begun = false;
    for (const auto& [shard, from, node] : action.changes) {
        // Nodes are those of the device file, which does not change while the daemon runs.
        const auto asked =
            node < window.placement.nodes.size()
                ? parts_.actuators->move_shard(shard, window.placement.nodes[node].name)
                : Result<void>(Error{Errc::kNotFound, 0, "node of the shard"});
        any_begun = any_begun || asked.ok();
        if (asked.ok()) continue;
        log(LogLevel::kInfo, "control: decision %llu: %s stays where it is: %s",
            static_cast<unsigned long long>(decision.id), shard.c_str(),
            fabricshm::describe(asked.error()).c_str());
        if (refused.ok()) refused = asked;
    }
    return any_begun ? Result<void>() : refused;
}

// All of it or nothing: half of a division is none. What was done before one of them failed is
// rolled back, the last first.
Result<void> Controller::carry_out(const ComputeShare& action, const Decision&, const Window&) {
    auto changes = action.changes;
    // Those that give go before those that take, also when a division is rolled back.
    std::stable_partition(changes.begin(), changes.end(),
                          [](const auto& change) { return change.after < change.before; });
    Actuators& actuators = *parts_.actuators;
    for (std::size_t k = 0; k < changes.size(); ++k) {
        const auto done = actuators.set_compute_share(changes[k].name, changes[k].after);
        if (done.ok()) continue;
        while (k-- > 0) (void)actuators.set_compute_share(changes[k].name, changes[k].before);
        return done;
    }
    return {};
}

Result<void> Controller::carry_out(const Quota& action, const Decision&, const Window&) {
    return parts_.actuators->shift_quotas(action);
}

Result<void> Controller::carry_out(const PoolQuota& action, const Decision&, const Window&) {
    return parts_.actuators->shift_pool_quotas(action);
}

Result<void> Controller::carry_out(const CacheQuota& action, const Decision&, const Window&) {
    return parts_.actuators->shift_cache_quotas(action);
}

void Controller::remember(const TickResult& result) {
    const std::lock_guard lock(mutex_);
    for (const DecisionOutcome& outcome : result.outcomes) remember(outcome);
    for (const Decision& decision : result.decisions) {
        recent_.push_back(decision);
        if (recent_.size() > kRecent) recent_.pop_front();
    }
    FABRIC_CHECK(recent_.size() <= kRecent);
}

void Controller::remember(const DecisionOutcome& outcome) {
    const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const Decision& decision) {
        return decision.id == outcome.id;
    });
    if (found == recent_.end()) return;
    found->outcome = outcome.outcome;
    found->measured = outcome.measured;
    found->outcome_reason = outcome.reason;
}

std::vector<Decision> Controller::decisions(std::size_t last) const {
    const std::lock_guard lock(mutex_);
    const std::size_t count = last == 0 ? recent_.size() : std::min(last, recent_.size());
    return {recent_.end() - static_cast<std::ptrdiff_t>(count), recent_.end()};
}

std::optional<Decision> Controller::decision(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    for (const Decision& decision : recent_) {
        if (decision.id == id) return decision;
    }
    return std::nullopt;
}

LoopCounters Controller::counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
}

}  // namespace fabricd
