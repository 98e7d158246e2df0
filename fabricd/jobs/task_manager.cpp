#include "fabricd/jobs/task_manager.hpp"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <set>

#include "fabricd/jobs/agent_desk.hpp"
#include "fabricd/jobs/agent_door.hpp"
#include "fabricd/jobs/child.hpp"
#include "fabricd/jobs/free_port.hpp"
#include "fabricd/jobs/job_alarms.hpp"
#include "fabricd/jobs/job_roster.hpp"
#include "fabricd/jobs/job_screen.hpp"
#include "fabricd/jobs/program_path.hpp"
#include "fabricd/jobs/rank_start.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

// A loaded host takes seconds to start a process; one that takes so long is stuck.
constexpr auto kRegisterWithin = std::chrono::seconds(60);
// Beyond the grace period of the ranks, for the agents' own end.
constexpr auto kAgentsEndWithin = std::chrono::seconds(10);
constexpr auto kAlarmWithin = std::chrono::seconds(5);
// As often as the daemon asks the devices themselves (docs/telemetry.md).
constexpr auto kLookEvery = std::chrono::seconds(1);
// Before ranks are placed again; the looks that were made before count without an answer by then.
constexpr auto kLookWithin = std::chrono::seconds(3);
constexpr int kKilled = 128 + SIGKILL;
constexpr int kTimeLimitCode = 124;  // as timeout(1)
constexpr int kNoAgentCode = 125;
constexpr auto kMaxAdopt = std::chrono::hours(24);
constexpr int kMovedCode = 1;  // of a job whose ranks were ended for a move and have no place

std::string code_text(int code) {
    if (code <= 128 || code > 128 + 64) return "exited with code " + std::to_string(code);
    const char* name = ::sigabbrev_np(code - 128);
    return std::string("was killed by ") +
           (name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(code - 128));
}

/// " (1 of 3)": of the one that begins.
std::string count_text(unsigned used, const JobSpec& spec) {
    return " (" + std::to_string(used + 1) + " of " + std::to_string(spec.max_restarts) + ")";
}

class TaskManager {
  public:
    TaskManager(ManagedJob job, const JobFolder& folder, Fd signals)
        : job_(std::move(job)),
          folder_(folder),
          signals_(std::move(signals)),
          screen_(job_.on_terminal, signals_.get()),
          alarms_(job_.spec.alarm_command,
                  "job " + std::to_string(folder.number()) + " (" + job_.spec.name + ")") {}

    int run();

  private:
    enum class Phase { kStarting, kRunning, kRestarting, kEnding };

    Result<void> prepare();
    void save() const;
    void restore(const jobs::v1::ManagerState& state);
    void adopt();
    void on_registered(unsigned number, const jobs::v1::Registered& registered);
    void restart_all();
    void continue_restart();
    void begin_attempt();
    Result<void> start_agent(std::size_t number);
    void order(unsigned rank);
    void send_orders(std::size_t number);
    void stop_all(fabricshm::Duration grace, bool leave);

    void handle(const AgentNews& news);
    void on_started(const jobs::v1::RankStarted& started);
    void on_ended(unsigned rank, unsigned attempt, int code, const std::string& reason);
    void end_if_done();
    void on_agent_end(std::size_t number);
    void on_lost(std::size_t agent, const std::string& what);
    void on_failure(unsigned rank, int code, const std::string& text);
    unsigned used_restarts(unsigned rank) const {
        return job_.spec.restart == JobRestart::kRank ? roster_.ranks[rank].restarts : restarts_;
    }
    void restart_rank(unsigned rank, const std::string& why);
    void end_for_restart(unsigned rank, int code, const std::string& why);
    void on_look();
    void on_device(const DeviceChange& change);
    void on_signal();
    void on_time();
    void begin_end(JobOutcome outcome, int code, const std::string& reason,
                   fabricshm::Duration grace);

    void note(JobPhase state, const std::string& reason) const {
        folder_.note({0, state, JobOutcome::kNone, 0, reason});
    }
    /// After a signal nothing waits for a terminal.
    int write_ms() const { return is_interrupted_ ? 0 : timeout_ms(); }
    void say(const std::string& text) { screen_.say(text, write_ms()); }
    JobPhase state() const {
        if (phase_ == Phase::kStarting) return JobPhase::kStarting;
        return phase_ == Phase::kRunning ? JobPhase::kRunning : JobPhase::kRepairing;
    }
    int timeout_ms() const;
    int finish();

    ManagedJob job_;  // its groups, devices and plan are those of this attempt
    const JobFolder& folder_;
    Fd signals_;
    JobScreen screen_;
    std::unique_ptr<JobDeviceWatch> watch_;  // of a job whose devices have names
    DeviceHealth health_;
    std::unique_ptr<AgentDesk> desk_;
    JobRoster roster_;
    JobAlarms alarms_;
    RankContext context_;
    Phase phase_ = Phase::kStarting;
    bool has_begun_ = false;  // of this attempt: ranks may have been started
    std::int64_t began_unix_ms_ = unix_ms_now();
    std::optional<TimePoint> time_limit_;
    std::optional<TimePoint> kill_agents_at_;
    // While all ranks are ended to be started again: the one that does not come back, what is said
    // if none can, the look that is waited for, and until when.
    std::optional<unsigned> left_out_;
    unsigned restarts_ = 0;  // of all ranks together
    int failed_code_ = 0;
    std::string failure_;
    std::uint64_t look_ = 0;
    std::optional<TimePoint> look_by_;
    JobOutcome outcome_ = JobOutcome::kOk;
    int code_ = 0;
    std::string reason_;
    bool is_interrupted_ = false;  // by a signal
};

Result<void> TaskManager::prepare() {
    FABRIC_TRY(desk_, AgentDesk::start());
    context_.job = folder_.number();
    context_.run = "fabric-job-" + std::to_string(folder_.number());
    context_.attach_socket = job_.attach_socket;
    // Numbers are a user's own, names of arenas are all users'.
    context_.arena = "job-" + std::to_string(::getuid()) + "-" + std::to_string(folder_.number());
    context_.python_packages = job_.spec.interpreter.empty() ? "" : find_python_packages();
    context_.interpreter =
        find_program(job_.spec.interpreter.empty() ? job_.spec.script : job_.spec.interpreter);
    context_.cores = static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_ONLN));
    if (job_.state) restore(*job_.state);
    roster_.assign(job_.plan);
    screen_.set_ranks(roster_.ranks.size());
    if (job_.look) watch_ = std::make_unique<JobDeviceWatch>(job_.look, kLookEvery);
    if (job_.spec.time_limit > fabricshm::Duration::zero()) {
        const auto used = std::chrono::milliseconds(unix_ms_now() - began_unix_ms_);
        time_limit_ = fabricshm::deadline_after(Clock::now(), job_.spec.time_limit - used);
    }
    return {};
}

void TaskManager::save() const {
    jobs::v1::ManagerState state;
    put_plan(job_.spec, job_.nodes, job_.plan, state);
    roster_.put(state);
    state.set_attach_socket(job_.attach_socket);
    state.set_attempt(context_.attempt);
    state.set_master_port(context_.master_port);
    state.set_restarts(restarts_);
    state.set_began_unix_ms(began_unix_ms_);
    state.set_is_restarting(phase_ == Phase::kRestarting || !has_begun_);
    if (left_out_) state.set_left_out(*left_out_);
    state.set_failure(failure_);
    state.set_failed_code(failed_code_);
    if (phase_ == Phase::kEnding) {
        state.mutable_ending()->set_outcome(name_of(outcome_));
        state.mutable_ending()->set_code(code_);
        state.mutable_ending()->set_reason(reason_);
    }
    save_state(folder_.state_path(), state);
}

void TaskManager::restore(const jobs::v1::ManagerState& state) {
    roster_.take(state);
    context_.attempt = state.attempt();
    context_.master_port = state.master_port();
    restarts_ = state.restarts();
    began_unix_ms_ = std::min(state.began_unix_ms(), began_unix_ms_);
    has_begun_ = !state.is_restarting();
    if (!has_begun_) phase_ = Phase::kRestarting;
    if (state.has_left_out() && state.left_out() < roster_.ranks.size())
        left_out_ = state.left_out();
    // Nothing has failed yet in the first attempt.
    failure_ = state.failure().empty() ? "its task manager was killed" : state.failure();
    failed_code_ = state.failure().empty() ? kKilled : state.failed_code();
}

/// The agents of a manager that was killed. What became of their ranks they say when they register;
/// those of agents that are gone have failed.
void TaskManager::adopt() {
    note(state(), "its task manager was killed, and another one goes on");
    std::vector<std::size_t> gone;
    for (std::size_t number = 0; number < roster_.agents.size(); ++number) {
        ManagedAgent& agent = roster_.agents[number];
        auto visit = visit_door(folder_.door_path(number));
        if (!visit.ok() || !desk_->add(std::move(visit->socket)).ok()) {
            gone.push_back(number);
            continue;
        }
        agent.child = std::move(visit->agent);
        agent.is_alive = agent.is_adopted = true;
        agent.register_by = Clock::now() + kRegisterWithin;
    }
    for (const std::size_t number : gone) {
        // Not one that the end of those before it has started again.
        if (!roster_.agents[number].is_alive) on_lost(number, "its agent was killed");
    }
    end_if_done();
}

void TaskManager::on_registered(unsigned number, const jobs::v1::Registered& registered) {
    ManagedAgent& agent = roster_.agents[number];
    agent.is_registered = true;
    if (phase_ == Phase::kEnding) stop_all(fabricshm::Duration::zero(), true);
    if (phase_ == Phase::kRestarting) stop_all(job_.spec.grace, false);
    if (agent.is_adopted) {
        agent.ordered.clear();  // all that it was not given comes to it below, once
        std::set<std::pair<unsigned, unsigned>> known;
        for (const auto& one : registered.running()) known.emplace(one.rank(), one.attempt());
        for (const auto& one : registered.ended()) known.emplace(one.rank(), one.attempt());
        for (unsigned rank = 0; rank < roster_.ranks.size(); ++rank) {
            if (roster_.ranks[rank].agent != number || !roster_.ranks[rank].is_live) continue;
            if (known.count({rank, roster_.ranks[rank].attempt}) != 0) continue;
            // Its order was lost with the manager.
            roster_.ranks[rank].is_live = phase_ == Phase::kStarting;
            if (roster_.ranks[rank].is_live) agent.ordered.push_back(rank);
        }
        for (const auto& one : registered.running()) on_started(one);
        for (const auto& one : registered.ended()) {
            on_ended(one.rank(), one.attempt(), one.code(), one.reason());
        }
        if (phase_ == Phase::kRestarting && !roster_.any_live()) restart_all();
    }
    send_orders(number);
}

Result<void> TaskManager::start_agent(std::size_t number) {
    FABRIC_TRY(const Fd socket, desk_->connect());
    ChildSpec spec;
    spec.arguments = job_.agent;
    const auto adopt = std::min<fabricshm::Duration>(job_.spec.adopt_within, kMaxAdopt);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(adopt).count();
    for (const auto& word : {std::to_string(number), std::string("--"), folder_.door_path(number),
                             std::to_string(ms)}) {
        spec.arguments.push_back(word);
    }
    spec.environment = own_environment();
    spec.extra = socket.get();
    // Not SIGKILL: its ranks go on until another manager comes.
    spec.parent_death = SIGHUP;
    ManagedAgent& agent = roster_.agents[number];
    FABRIC_TRY(agent.child, start_child(spec));
    agent.is_alive = true;
    agent.is_registered = agent.is_adopted = false;
    agent.register_by = Clock::now() + kRegisterWithin;
    return {};
}

/// Once no rank runs any more: where the next ones go depends on what the devices say then.
void TaskManager::restart_all() {
    if (watch_ == nullptr) {
        continue_restart();
    } else if (!look_by_) {
        look_ = watch_->ask();
        look_by_ = fabricshm::deadline_after(Clock::now(), kLookWithin);
    }
}

void TaskManager::continue_restart() {
    look_by_.reset();
    const auto left_out = std::exchange(left_out_, {});
    auto planned = plan_attempt(job_.spec, job_.nodes, job_.plan, left_out);
    if (!planned.next) {
        begin_end(JobOutcome::kFailed, failed_code_, failure_ + "; " + planned.problem,
                  fabricshm::Duration::zero());
        return;
    }
    job_.spec = std::move(planned.next->spec);
    job_.plan = std::move(planned.next->plan);
    // Those behind it move up, with the restarts that they have used.
    FABRIC_CHECK(!left_out || *left_out < roster_.ranks.size());
    if (left_out) roster_.ranks.erase(roster_.ranks.begin() + *left_out);
    roster_.assign(job_.plan);
    screen_.set_ranks(roster_.ranks.size());
    if (!planned.next->change.empty()) {
        say(planned.next->change);
        note(JobPhase::kPlaced, planned.next->change);
    }
    begin_attempt();
}

void TaskManager::begin_attempt() {
    // Another manager begins it once more, whatever agents it finds, until all of them are there.
    has_begun_ = false;
    for (auto& one : roster_.ranks) one.is_done = false;
    save();
    phase_ = Phase::kStarting;
    // Ranks that were never ordered have no attempt behind them.
    if (roster_.ranks.front().attempt > 0) ++context_.attempt;
    context_.master_port = free_port();
    note(JobPhase::kStarting, "attempt " + std::to_string(context_.attempt + 1));
    for (std::size_t number = 0; number < roster_.agents.size(); ++number) {
        if (roster_.agents[number].is_alive || !roster_.has_ranks(number)) continue;
        const auto started = start_agent(number);
        if (started.ok()) continue;
        begin_end(JobOutcome::kFailed, kNoAgentCode,
                  "an agent can't be started: " + fabricshm::explanation_of(started.error()),
                  fabricshm::Duration::zero());
        return;
    }
    for (unsigned rank = 0; rank < roster_.ranks.size(); ++rank) order(rank);
    for (std::size_t number = 0; number < roster_.agents.size(); ++number) send_orders(number);
}

void TaskManager::order(unsigned rank) {
    ManagedRank& one = roster_.ranks[rank];
    ++one.attempt;
    one.is_live = true;
    one.is_started = one.is_done = false;
    screen_.forget(rank);
    roster_.agents[one.agent].ordered.push_back(rank);
}

void TaskManager::send_orders(std::size_t number) {
    ManagedAgent& agent = roster_.agents[number];
    if (!agent.is_registered || agent.ordered.empty()) return;
    if (!has_begun_) {
        // Once all agents have their doors open: from then on one that is gone was killed.
        has_begun_ = roster_.all_registered();
        if (!has_begun_) return;
        save();
        for (std::size_t other = 0; other < roster_.agents.size(); ++other) {
            if (other != number) send_orders(other);
        }
    }
    const auto base = own_environment();
    const auto words = rank_arguments(job_.spec, context_);
    jobs::v1::Command command;
    for (const unsigned rank : std::exchange(agent.ordered, {})) {
        auto& start = *command.mutable_start()->add_ranks();
        start.set_rank(rank);
        start.set_attempt(roster_.ranks[rank].attempt);
        start.set_log(folder_.log_path(rank));
        for (const auto& word : words) start.add_arguments(word);
        for (const auto& one :
             rank_environment(job_.spec, job_.nodes, job_.plan, rank, context_, base)) {
            start.add_environment(one);
        }
    }
    // One that is gone is heard of by its pidfd.
    (void)desk_->send(static_cast<unsigned>(number), command);
}

void TaskManager::stop_all(fabricshm::Duration grace, bool leave) {
    jobs::v1::Command command;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
    command.mutable_stop()->set_grace_ms(
        static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, 1 << 30)));
    command.mutable_stop()->set_leave(leave);
    for (unsigned number = 0; number < roster_.agents.size(); ++number) {
        ManagedAgent& agent = roster_.agents[number];
        // What was never sent is not waited for.
        for (const unsigned rank : std::exchange(agent.ordered, {}))
            roster_.ranks[rank].is_live = false;
        if (!agent.is_alive) continue;
        const bool is_sent = agent.is_registered && desk_->send(number, command);
        if (!is_sent && leave) ::kill(agent.child.pid, SIGTERM);
    }
}

void TaskManager::begin_end(JobOutcome outcome, int code, const std::string& reason,
                            fabricshm::Duration grace) {
    phase_ = Phase::kEnding;
    outcome_ = outcome;
    code_ = code;
    reason_ = reason;
    save();  // before the edge: what is ending has an end that is decided
    note(JobPhase::kEnding, reason);
    stop_all(grace, true);
    kill_agents_at_ = Clock::now() + grace + kAgentsEndWithin;
    look_by_.reset();
    screen_.hurry();
}

void TaskManager::on_started(const jobs::v1::RankStarted& started) {
    if (started.rank() >= roster_.ranks.size()) return;
    ManagedRank& rank = roster_.ranks[started.rank()];
    if (rank.attempt != started.attempt() || !rank.is_live) return;
    rank.is_started = true;
    rank.pid = started.pid();
    if (phase_ != Phase::kStarting || !roster_.all_started()) return;
    phase_ = Phase::kRunning;
    note(JobPhase::kRunning, std::to_string(roster_.ranks.size()) + " ranks");
}

void TaskManager::on_ended(unsigned number, unsigned attempt, int code, const std::string& reason) {
    if (number >= roster_.ranks.size()) return;
    ManagedRank& rank = roster_.ranks[number];
    if (rank.attempt != attempt || !rank.is_live) return;
    rank.is_live = false;
    rank.is_done = code == 0;
    screen_.finish(number, write_ms());
    if (phase_ == Phase::kEnding) return;
    if (phase_ == Phase::kRestarting) {
        if (!roster_.any_live()) restart_all();
        return;
    }
    if (code != 0) {
        const std::string who = "rank " + std::to_string(number) +
                                (rank.pid != 0 ? " (pid " + std::to_string(rank.pid) + ") " : " ");
        on_failure(number, code,
                   who + (reason.empty() ? code_text(code) : "did not start: " + reason));
        return;
    }
    save();
    end_if_done();
}

void TaskManager::end_if_done() {
    if (roster_.all_done()) {
        begin_end(JobOutcome::kOk, 0, "all ranks ended well", job_.spec.grace);
    }
}

void TaskManager::restart_rank(unsigned number, const std::string& why) {
    note(JobPhase::kRepairing,
         why + "; the rank is started again" + count_text(used_restarts(number), job_.spec));
    say("starting rank " + std::to_string(number) + " again" +
        count_text(used_restarts(number), job_.spec));
    ++roster_.ranks[number].restarts;
    phase_ = Phase::kStarting;
    order(number);
    save();
    send_orders(roster_.ranks[number].agent);
}

void TaskManager::end_for_restart(unsigned number, int code, const std::string& why) {
    failure_ = why;
    failed_code_ = code;
    if (left_out_) {
        note(JobPhase::kRepairing, why + "; all other ranks are started again without it");
        say("starting all ranks but " + std::to_string(number) + " again");
    } else {
        note(JobPhase::kRepairing,
             why + "; all ranks are started again" + count_text(used_restarts(number), job_.spec));
        say("starting all ranks again" + count_text(used_restarts(number), job_.spec));
        for (auto& one : roster_.ranks) ++one.restarts;
        ++restarts_;
    }
    phase_ = Phase::kRestarting;
    save();
    stop_all(job_.spec.grace, false);
    if (!roster_.any_live()) restart_all();
}

void TaskManager::on_failure(unsigned number, int code, const std::string& text) {
    alarms_.ring(text);
    say(text);
    switch (repair_of(job_.spec, job_.nodes, job_.plan, number, used_restarts(number))) {
        case JobRepair::kRestartRank:
            if (roster_.agents[roster_.ranks[number].agent].is_alive)
                return restart_rank(number, text);
            return end_for_restart(number, code, text);
        case JobRepair::kRestartAll:
            return end_for_restart(number, code, text);
        case JobRepair::kShrink:
            screen_.show_last(number, folder_.log_path(number), write_ms());
            left_out_ = number;
            return end_for_restart(number, code, text);
        case JobRepair::kEnd:
            screen_.show_last(number, folder_.log_path(number), write_ms());
            return begin_end(JobOutcome::kFailed, code, text, job_.spec.grace);
    }
}

void TaskManager::on_look() {
    const auto seen = watch_->take();
    if (seen) {
        // One node has named devices that can be looked at: this one.
        for (const auto& change : health_.update(job_.nodes[0], 0, job_.plan, *seen)) {
            on_device(change);
        }
    }
    if (look_by_ && watch_->looked() >= look_ && phase_ == Phase::kRestarting) continue_restart();
}

void TaskManager::on_device(const DeviceChange& change) {
    if (phase_ == Phase::kEnding) return;
    const unsigned rank = change.ranks.front();
    const std::string text = change_text(job_.nodes[0], change);
    if (change.state.empty()) return note(state(), text);
    alarms_.ring(text);
    say(text);
    note(state(), text);
    const bool moves = change.is_serious && job_.spec.device_fault == JobDeviceFault::kMove &&
                       phase_ != Phase::kRestarting && used_restarts(rank) < job_.spec.max_restarts;
    if (!moves) return;
    // Ranks that compute are not ended for a place that there is not.
    const auto planned = plan_attempt(job_.spec, job_.nodes, job_.plan, {});
    if (!planned.next) return note(state(), "it stays where it is: " + planned.problem);
    end_for_restart(rank, kMovedCode, text);
}

void TaskManager::on_agent_end(std::size_t number) {
    ManagedAgent& agent = roster_.agents[number];
    const std::string end = agent.is_adopted ? "has ended" : code_text(reap(agent.child));
    agent.is_alive = agent.is_registered = false;
    agent.child.pidfd.reset();
    // Its ranks were killed by the kernel; what those had started came to this process.
    std::vector<pid_t> kept;
    for (const auto& one : roster_.agents) {
        if (one.is_alive) kept.push_back(one.child.pid);
    }
    for (const auto& one : alarms_.running()) kept.push_back(one.pid);
    kill_strays(kept);
    on_lost(number, "its agent (pid " + std::to_string(agent.child.pid) + ") " + end);
}

void TaskManager::on_lost(std::size_t number, const std::string& what) {
    // One failure, not one for each rank: the others are over, too, before it is handled.
    const auto lost = roster_.lose(number);
    if (lost.empty()) return;
    if (phase_ == Phase::kRestarting) {
        if (!roster_.any_live()) restart_all();
    } else if (phase_ != Phase::kEnding) {
        on_failure(lost.front(), kKilled, "rank " + std::to_string(lost.front()) + ": " + what);
    }
}

void TaskManager::handle(const AgentNews& news) {
    if (news.agent >= roster_.agents.size() || news.has_ended) return;
    const auto& event = news.event;
    if (event.has_registered()) on_registered(news.agent, event.registered());
    if (event.has_started()) on_started(event.started());
    if (event.has_output()) {
        const auto& output = event.output();
        screen_.add(output.rank(), output.is_error(), output.text(), write_ms());
    }
    if (event.has_alarm()) {
        say(event.alarm().text());
        alarms_.ring(event.alarm().text());
    }
    if (event.has_ended()) {
        const auto& ended = event.ended();
        on_ended(ended.rank(), ended.attempt(), ended.code(), ended.reason());
    }
}

void TaskManager::on_signal() {
    signalfd_siginfo info{};
    if (::read(signals_.get(), &info, sizeof info) != sizeof info) return;
    const int number = static_cast<int>(info.ssi_signo);
    is_interrupted_ = true;
    if (phase_ == Phase::kEnding) {
        stop_all(fabricshm::Duration::zero(), true);
        kill_agents_at_ = Clock::now() + std::chrono::seconds(2);
        return;
    }
    const std::string text = std::string("ended by SIG") + ::sigabbrev_np(number);
    say(text);
    begin_end(JobOutcome::kCancelled, 128 + number, text, job_.spec.grace);
}

void TaskManager::on_time() {
    const TimePoint now = Clock::now();
    if (time_limit_ && now >= *time_limit_) {
        time_limit_.reset();
        if (phase_ != Phase::kEnding) {
            const std::string text = "the time limit of " +
                                     fabricshm::format_duration(job_.spec.time_limit) + " is over";
            alarms_.ring(text);
            say(text);
            begin_end(JobOutcome::kFailed, kTimeLimitCode, text, job_.spec.grace);
        }
    }
    if (look_by_ && now >= *look_by_ && phase_ == Phase::kRestarting) continue_restart();
    for (ManagedAgent& agent : roster_.agents) {
        if (!agent.is_alive || agent.is_registered || now < agent.register_by) continue;
        agent.register_by = TimePoint::max();
        ::kill(agent.child.pid, SIGKILL);
    }
    if (kill_agents_at_ && now >= *kill_agents_at_) {
        kill_agents_at_.reset();
        for (const ManagedAgent& agent : roster_.agents) {
            if (agent.is_alive) ::kill(agent.child.pid, SIGKILL);
        }
    }
}

int TaskManager::timeout_ms() const {
    TimePoint next = TimePoint::max();
    if (time_limit_) next = std::min(next, *time_limit_);
    if (kill_agents_at_) next = std::min(next, *kill_agents_at_);
    if (look_by_) next = std::min(next, *look_by_);
    for (const ManagedAgent& agent : roster_.agents) {
        if (agent.is_alive && !agent.is_registered) next = std::min(next, agent.register_by);
    }
    if (next == TimePoint::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

int TaskManager::finish() {
    alarms_.wait(kAlarmWithin);
    kill_strays({});
    desk_->stop();
    ::unlink(folder_.state_path().c_str());
    folder_.note({0, JobPhase::kEnded, outcome_, code_, reason_});
    return code_;
}

int TaskManager::run() {
    adopt_orphans();
    const auto prepared = prepare();
    if (!prepared.ok()) {
        const std::string text = fabricshm::explanation_of(prepared.error());
        say(text);
        folder_.note({0, JobPhase::kEnded, JobOutcome::kFailed, kNoAgentCode, text});
        return kNoAgentCode;
    }
    if (job_.state) {
        adopt();
    } else {
        begin_attempt();
    }
    while (phase_ != Phase::kEnding || roster_.any_agent()) {
        std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0},
                                     {desk_->wakeup(), POLLIN, 0},
                                     {watch_ != nullptr ? watch_->wakeup() : -1, POLLIN, 0}};
        for (const ManagedAgent& agent : roster_.agents) {
            waits.push_back({agent.is_alive ? agent.child.pidfd.get() : -1, POLLIN, 0});
        }
        if (::poll(waits.data(), waits.size(), timeout_ms()) < 0 && errno != EINTR) break;
        // What an agent said before it ended counts before its end.
        for (const AgentNews& news : desk_->take()) handle(news);
        if (waits[0].revents != 0) on_signal();
        if (waits[2].revents != 0) on_look();
        for (std::size_t number = 0; number < roster_.agents.size(); ++number) {
            // Those that came meanwhile are waited for in the next round.
            const std::size_t at = 3 + number;
            if (at >= waits.size() || waits[at].revents == 0 || !roster_.agents[number].is_alive)
                continue;
            on_agent_end(number);
        }
        on_time();
    }
    for (const AgentNews& news : desk_->take()) handle(news);
    return finish();
}

}  // namespace

Result<Fd> block_job_signals() {
    sigset_t ends;
    ::sigemptyset(&ends);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&ends, number);
    ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    Fd signals(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals) return error_from_errno(errno, "watch signals");
    return signals;
}

int run_task_manager(ManagedJob job, const JobFolder& folder, Fd signals) {
    TaskManager manager(std::move(job), folder, std::move(signals));
    return manager.run();
}

}  // namespace fabricd
