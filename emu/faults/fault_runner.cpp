#include "emu/faults/fault_runner.hpp"

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "emu/faults/process_tree.hpp"

extern char** environ;

namespace emu {

namespace {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::deadline_after;
using fabricshm::TimePoint;

constexpr auto kLook = 2000;  // microseconds between two polls

// The last signal to pass on; a handler may do no more than note it. Relaxed: it carries no data.
std::atomic<int> g_signal{0};

void note_signal(int number) {
    g_signal.store(number, std::memory_order_relaxed);
}

// A torn journal needs a dead daemon: a live one would write over the damage.
bool is_fatal_to_daemon(const Fault& fault) {
    return fault.target.kind == TargetKind::kDaemon &&
           (fault.action == Action::kKill || fault.action == Action::kTear);
}

}  // namespace

FaultRunner::FaultRunner(FaultPlan plan, std::vector<std::string> command)
    : plan_(std::move(plan)), command_(std::move(command)) {
    for (const Fault& fault : plan_.faults)
        pending_.push_back({fault, false, TimePoint::max(), {}});
    // Of its own, so that two runs do not read each other's reports.
    const char* base = std::getenv("TMPDIR");
    std::string name = std::string(base != nullptr ? base : "/tmp") + "/fabric-faults-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) folder_ = name;
}

FaultRunner::~FaultRunner() {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void FaultRunner::say(const Fault& fault, const std::string& what) const {
    const std::chrono::duration<double> since = Clock::now() - begin_;
    const std::string whom = fault.action == Action::kFill ? "pool" : text_of(fault.target);
    std::fprintf(stderr, "fabric-faults: %.3f s: %s %s: %s\n", since.count(), text_of(fault.action),
                 whom.c_str(), what.c_str());
}

RunOutcome FaultRunner::run() {
    RunOutcome outcome;
    begin_ = Clock::now();
    if (!start(outcome)) return outcome;
    while (!reap(outcome)) {
        // To the command alone: what it started is its own to end.
        if (const int number = g_signal.exchange(0); number != 0) ::kill(child_, number);
        read_reports();
        look_after_daemon();
        look_for_stops();
        for (Pending& pending : pending_) {
            // Faults at points are struck by the process itself, exactly there; only those that go
            // by the clock are struck from here.
            const bool timed = pending.fault.point.empty() && !pending.happened;
            if (timed && Clock::now() >= begin_ + pending.fault.after) strike(pending);
            if (Clock::now() >= pending.until) finish(pending);
        }
        ::usleep(kLook);
    }
    // Once more: what was reported at the very end.
    read_reports();
    for (const Pending& pending : pending_) {
        if (pending.happened) continue;
        outcome.missed.push_back("line " + std::to_string(pending.fault.line) + ": " +
                                 text_of(pending.fault.action) + " never happened");
    }
    return outcome;
}

bool FaultRunner::start(RunOutcome& outcome) {
    // Orphans of the command become children of this process instead of init's.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        struct sigaction action {};
        action.sa_handler = note_signal;
        ::sigaction(number, &action, nullptr);
    }
    const std::string report = folder_ + "/report";
    if (plan_.own_daemon) {
        daemon_ = std::make_unique<OwnDaemon>(plan_.daemon_program, plan_.daemon_arguments);
        if (!daemon_->start(armed_in_daemon(plan_), report)) {
            outcome.error_message = plan_.daemon_program + ": can't be started ([daemon] program)";
            return false;
        }
        // For the ranks: they attach to this daemon and to no other.
        ::setenv("FABRIC_SOCKET", daemon_->socket().c_str(), 1);
        ::setenv("FABRIC_ADMIN_SOCKET", (daemon_->folder() + "/admin.sock").c_str(), 1);
        // A daemon that a fault kills while it starts is started again by the loop.
        // As long as it is started again there is something to wait for.
        while (!daemon_->wait_until_ready()) {
            read_reports();
            look_after_daemon();
            if (daemon_->pid() > 0) continue;
            outcome.error_message = "the daemon does not start ([daemon])";
            return false;
        }
    }
    // A pool that is full from the beginning is full before the command can ask for any of it.
    for (Pending& pending : pending_) {
        const bool at_once = pending.fault.action == Action::kFill &&
                             pending.fault.after == fabricshm::Duration::zero();
        if (at_once) strike(pending);
    }
    ::setenv("FABRIC_FAULT", armed_in_ranks(plan_).c_str(), 1);
    ::setenv("FABRIC_FAULT_REPORT", report.c_str(), 1);
    if (start_command()) return true;
    outcome.error_message = command_[0] + ": can't be started";
    return false;
}

bool FaultRunner::start_command() {
    std::vector<char*> pointers;
    for (std::string& word : command_) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    begin_ = Clock::now();
    return ::posix_spawnp(&child_, pointers[0], nullptr, nullptr, pointers.data(), environ) == 0;
}

std::vector<pid_t> FaultRunner::processes_of(const Target& target) const {
    if (target.kind == TargetKind::kDaemon) return daemon_->processes();
    std::vector<pid_t> all;
    const std::vector<int> ranks = ranks_of(plan_, target);
    for (const int rank : ranks) {
        for (const pid_t pid : find_processes(::getpid(), "RANK=" + std::to_string(rank))) {
            all.push_back(pid);
        }
    }
    // A device by the variable that its processes are started with.
    if (ranks.empty()) all = find_processes(::getpid(), "FABRIC_DEVICE=" + target.name);
    return all;
}

// Something whose time has come.
void FaultRunner::strike(Pending& pending) {
    const Fault& fault = pending.fault;
    if (fault.action == Action::kFill) {
        const char* socket = std::getenv("FABRIC_SOCKET");
        filler_ = std::make_unique<PoolFiller>(socket != nullptr ? socket : "");
        if (filler_->taken() == 0) say(fault, "there was nothing to take");
        if (filler_->taken() != 0) {
            say(fault, fabricshm::format_bytes(filler_->taken()) + " taken");
        }
        pending.happened = true;
        if (fault.length) pending.until = deadline_after(Clock::now(), *fault.length);
        return;
    }
    if (is_fatal_to_daemon(fault)) {
        // A daemon that is dead already can't be killed: said at the end as never having happened.
        if (daemon_->processes().empty()) return;
        pending.happened = true;
        return daemon_->signal(SIGKILL);  // look_after_daemon() does the rest
    }
    strike_processes(pending);
}

void FaultRunner::strike_processes(Pending& pending) {
    const Fault& fault = pending.fault;
    const bool stop = fault.action == Action::kStop;
    const std::vector<pid_t> processes = processes_of(fault.target);
    // A launcher may need seconds to start the ranks, and `after` says when at the earliest.
    if (processes.empty()) return;  // not there yet; the next poll tries again
    // All in one go, so that a host goes down as a whole.
    for (const pid_t pid : processes) ::kill(pid, stop ? SIGSTOP : SIGKILL);
    pending.happened = true;
    say(fault, std::to_string(processes.size()) + " process(es)");
    if (!stop) return;
    pending.stopped = processes;
    if (fault.length) pending.until = deadline_after(Clock::now(), *fault.length);
}

void FaultRunner::finish(Pending& pending) {
    pending.until = TimePoint::max();
    if (pending.fault.action == Action::kFill) filler_.reset();
    // Processes that ended meanwhile do not mind.
    for (const pid_t pid : pending.stopped) ::kill(pid, SIGCONT);
    pending.stopped.clear();
    say(pending.fault, "over");
}

// "pid action point" per line, written by the processes themselves just before it happens.
void FaultRunner::read_reports() {
    std::ifstream file(folder_ + "/report");
    file.seekg(static_cast<std::streamoff>(reported_));
    // A line without its end is still being written: it is read at the next poll.
    for (std::string line; std::getline(file, line) && !file.eof();) {
        reported_ += line.size() + 1;
        std::istringstream words(line);
        pid_t pid = 0;
        std::string action;
        std::string point;
        words >> pid >> action >> point;
        // Its last words are often read when it is known to be dead, and has no number any more.
        const bool daemon = daemon_ != nullptr && pid == daemon_->last_pid();
        for (Pending& pending : pending_) {
            const Fault& fault = pending.fault;
            // The daemon reports what it knows: that it is killed.
            const bool torn = fault.action == Action::kTear && action == "kill";
            const bool same = fault.point == point && (torn || action == text_of(fault.action)) &&
                              daemon == (fault.target.kind == TargetKind::kDaemon);
            if (!same) continue;
            pending.happened = true;
            say(fault, "process " + std::to_string(pid) + " at " + point);
            if (fault.action == Action::kStop) pending.stopped.push_back(pid);
        }
    }
}

// Those that stop at a point are let go on a while after they really stopped.
void FaultRunner::look_for_stops() {
    for (Pending& pending : pending_) {
        const bool waits = pending.until == TimePoint::max() && !pending.stopped.empty();
        if (!waits || !pending.fault.length || !is_stopped(pending.stopped.front())) continue;
        pending.until = deadline_after(Clock::now(), *pending.fault.length);
    }
}

void FaultRunner::look_after_daemon() {
    if (daemon_ == nullptr || !daemon_->died()) return;
    read_reports();
    bool restart = false;
    for (Pending& pending : pending_) {
        const Fault& fault = pending.fault;
        if (!is_fatal_to_daemon(fault) || !pending.happened) continue;
        if (fault.action == Action::kTear && !daemon_->damage_journal(fault.damage)) {
            say(fault, "the journal can't be damaged");
        }
        restart = fault.restart;
    }
    std::fprintf(stderr, "fabric-faults: the daemon is dead%s\n",
                 restart ? "; it is started again" : "");
    // Nothing is armed in the next one: a point on its way up would kill it for ever.
    if (restart) daemon_->start("", "");
    ::setenv("FABRIC_FAULT", "", 1);
}

// True when the command has ended.
bool FaultRunner::reap(RunOutcome& outcome) {
    int status = 0;
    if (::waitpid(child_, &status, WNOHANG) != child_) return false;
    outcome.status = status;
    filler_.reset();
    // What the command left behind may be stopped or waiting: it goes with its command.
    for (Pending& pending : pending_) {
        for (const pid_t pid : pending.stopped) ::kill(pid, SIGCONT);
    }
    return true;
}

}  // namespace emu
