#include "fabricd/jobs/group_agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "fabricd/jobs/agent_door.hpp"
#include "fabricd/jobs/agent_link.hpp"
#include "fabricd/jobs/child.hpp"
#include "fabricd/jobs/stream_limits.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Fd;
using fabricshm::TimePoint;
using jobs::v1::AgentEvent;
using jobs::v1::Command;
using jobs::v1::RankStart;

namespace {

// A manager that died says no grace period any more; its ranks have this one.
constexpr auto kOrphanGrace = std::chrono::seconds(5);
constexpr int kNotStarted = 127;  // as a shell's

struct Pipe {
    Fd end;
    bool is_error;
};

struct RunningRank {
    unsigned rank;
    unsigned attempt;
    Child child;
    Pipe pipes[2];
    Fd log;
};

/// Why not all of it is written, errno; 0: it is.
int append(const Fd& file, const char* bytes, std::size_t count) {
    // What a full disk or a limit of the file's size cuts off, the next write() says the reason of.
    while (count > 0) {
        const ssize_t written = ::write(file.get(), bytes, count);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written < 0 ? errno : ENOSPC;
        bytes += written;
        count -= static_cast<std::size_t>(written);
    }
    return 0;
}

/// Whether the manager has died, and it was not read yet.
bool is_hung_up() {
    sigset_t pending;
    ::sigemptyset(&pending);
    return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGHUP) == 1;
}

class GroupAgent {
  public:
    GroupAgent(Fd socket, const AgentOrder& order, Fd signals)
        : order_(order), signals_(std::move(signals)) {
        open();
        attach(std::move(socket));
    }

    int run();

  private:
    void open();
    void obey(const Command& command);
    void start(const RankStart& order);
    fabricshm::Result<RunningRank> start_rank(const RankStart& order);
    void stop(fabricshm::Duration grace, bool leave);
    /// A manager is at the other end of the socket.
    void attach(Fd socket);
    /// The manager is gone: until another one comes, ranks go on.
    void orphaned();
    /// Sends what is there; true while there may be more.
    bool copy(RunningRank& rank, Pipe& pipe);
    void end(RunningRank& rank);
    void report_end(unsigned rank, unsigned attempt, int code, const std::string& reason);
    std::vector<pollfd> waits() const;
    int timeout_ms() const;

    const AgentOrder order_;
    std::unique_ptr<AgentLink> link_;
    Fd signals_;
    Fd door_;
    bool is_adopted_ = false;
    std::optional<TimePoint> orphan_until_;
    std::map<unsigned, jobs::v1::RankEnded> ended_;  // since they were started last
    std::list<RunningRank> ranks_;
    std::optional<TimePoint> kill_at_;
    bool leaving_ = false;
    bool log_failed_ = false;
};

fabricshm::Result<RunningRank> GroupAgent::start_rank(const RankStart& order) {
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0) return fabricshm::error_from_errno(errno, "make a pipe");
    Fd out_read(out[0]), out_write(out[1]);
    if (::pipe2(err, O_CLOEXEC) != 0) return fabricshm::error_from_errno(errno, "make a pipe");
    Fd err_read(err[0]), err_write(err[1]);
    ::fcntl(out_read.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(err_read.get(), F_SETFL, O_NONBLOCK);
    ChildSpec spec;
    spec.arguments.assign(order.arguments().begin(), order.arguments().end());
    spec.environment.assign(order.environment().begin(), order.environment().end());
    spec.output = out_write.get();
    spec.error = err_write.get();
    spec.parent_death = SIGKILL;
    RunningRank rank{order.rank(),
                     order.attempt(),
                     {},
                     {{std::move(out_read), false}, {std::move(err_read), true}},
                     {}};
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
    rank.log = Fd(::open(order.log().c_str(), kFlags, 0600));
    if (!rank.log) return fabricshm::error_of_disk(errno, "open the log");
    FABRIC_TRY(rank.child, start_child(spec));
    return rank;
}

/// Before it is registered: from then on the manager counts on it that another one finds the door.
/// A manager that is dead already has a successor that may have found none, and started another
/// agent in its place: this one leaves.
void GroupAgent::open() {
    if (!is_hung_up()) {
        // Without one the ranks end with their manager.
        auto door = open_door(order_.door);
        if (door.ok()) door_ = std::move(door).value();
    }
    leaving_ = is_hung_up();
}

void GroupAgent::attach(Fd socket) {
    orphan_until_.reset();
    link_ = std::make_unique<AgentLink>(std::move(socket));
    AgentEvent event;
    auto& own = *event.mutable_registered();
    own.set_agent(order_.number);
    own.set_pid(::getpid());
    for (const RunningRank& rank : ranks_) {
        auto& one = *own.add_running();
        one.set_rank(rank.rank);
        one.set_attempt(rank.attempt);
        one.set_pid(rank.child.pid);
    }
    for (const auto& [rank, one] : ended_) *own.add_ended() = one;
    if (!link_->send(event)) orphaned();
}

void GroupAgent::orphaned() {
    if (leaving_ || orphan_until_) return;
    if (!door_) return stop(kOrphanGrace, true);
    orphan_until_ = fabricshm::deadline_after(Clock::now(), order_.adopt_within);
}

void GroupAgent::start(const RankStart& order) {
    if (order.arguments().empty()) return;
    ended_.erase(order.rank());
    auto started = start_rank(order);
    if (!started.ok()) {
        report_end(order.rank(), order.attempt(), kNotStarted,
                   order.arguments(0) + ": " + fabricshm::explanation_of(started.error()));
        return;
    }
    AgentEvent event;
    event.mutable_started()->set_rank(order.rank());
    event.mutable_started()->set_attempt(order.attempt());
    event.mutable_started()->set_pid(started->child.pid);
    ranks_.push_back(std::move(started).value());
    if (!link_->send(event)) orphaned();
}

void GroupAgent::obey(const Command& command) {
    if (command.has_start() && !leaving_) {
        // What a stop before it was to kill has ended.
        if (ranks_.empty()) kill_at_.reset();
        for (const RankStart& rank : command.start().ranks()) start(rank);
    }
    if (command.has_stop()) {
        stop(std::chrono::milliseconds(command.stop().grace_ms()), command.stop().leave());
    }
}

void GroupAgent::stop(fabricshm::Duration grace, bool leave) {
    leaving_ = leaving_ || leave;
    for (const RunningRank& rank : ranks_) signal_group(rank.child.pid, SIGTERM);
    const TimePoint at = Clock::now() + grace;
    kill_at_ = kill_at_ ? std::min(*kill_at_, at) : at;
}

bool GroupAgent::copy(RunningRank& rank, Pipe& pipe) {
    char bytes[kMaxOutputBytes];
    const ssize_t count = ::read(pipe.end.get(), bytes, sizeof bytes);
    if (count < 0) return errno == EINTR;
    if (count == 0) {
        pipe.end.reset();
        return false;
    }
    AgentEvent event;
    // A full disk costs the log, not the job.
    const int failed = append(rank.log, bytes, static_cast<std::size_t>(count));
    if (failed != 0 && !std::exchange(log_failed_, true)) {
        event.mutable_alarm()->set_text(std::string("a log can't be written: ") +
                                        std::strerror(failed));
        link_->send(event);
    }
    event.mutable_output()->set_rank(rank.rank);
    event.mutable_output()->set_is_error(pipe.is_error);
    event.mutable_output()->set_text(bytes, static_cast<std::size_t>(count));
    if (!link_->send(event)) orphaned();
    return true;
}

void GroupAgent::report_end(unsigned rank, unsigned attempt, int code, const std::string& reason) {
    AgentEvent event;
    event.mutable_ended()->set_rank(rank);
    event.mutable_ended()->set_attempt(attempt);
    event.mutable_ended()->set_code(code);
    event.mutable_ended()->set_reason(reason);
    ended_[rank] = event.ended();
    if (!link_->send(event)) orphaned();
}

void GroupAgent::end(RunningRank& rank) {
    // Before it is reaped: until then its number is no other group's.
    signal_group(rank.child.pid, SIGKILL);
    const int code = reap(rank.child);
    for (Pipe& pipe : rank.pipes) {
        // Bounded: a process that left the group may write on and on.
        for (int chunk = 0; chunk < 64 && pipe.end && copy(rank, pipe); ++chunk) {
        }
    }
    report_end(rank.rank, rank.attempt, code, "");
}

std::vector<pollfd> GroupAgent::waits() const {
    std::vector<pollfd> all = {{signals_.get(), POLLIN, 0},
                               {link_->wakeup(), POLLIN, 0},
                               {orphan_until_ ? door_.get() : -1, POLLIN, 0}};
    for (const RunningRank& rank : ranks_) {
        all.push_back({rank.child.pidfd.get(), POLLIN, 0});
        for (const Pipe& pipe : rank.pipes) all.push_back({pipe.end.get(), POLLIN, 0});
    }
    return all;
}

int GroupAgent::timeout_ms() const {
    TimePoint next = TimePoint::max();
    if (kill_at_ && !ranks_.empty()) next = *kill_at_;
    if (orphan_until_) next = std::min(next, *orphan_until_);
    if (next == TimePoint::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

int GroupAgent::run() {
    for (;;) {
        if (ranks_.empty()) {
            kill_at_.reset();
            kill_strays({});
            if (leaving_) {
                if (door_) ::unlink(order_.door.c_str());
                return 0;
            }
        }
        auto all = waits();
        if (::poll(all.data(), all.size(), timeout_ms()) < 0 && errno != EINTR) return 1;
        if (all[0].revents != 0) {
            signalfd_siginfo info{};
            const bool is_one = ::read(signals_.get(), &info, sizeof info) > 0;
            // By the kernel when its parent ends: that is no news once another manager has come.
            // All others mean this process.
            if (is_one && info.ssi_signo == SIGHUP && !is_adopted_) orphaned();
            if (is_one && info.ssi_signo != SIGHUP) stop(kOrphanGrace, true);
        }
        if (orphan_until_ && Clock::now() >= *orphan_until_) {
            orphan_until_.reset();
            stop(kOrphanGrace, true);
        }
        if (kill_at_ && Clock::now() >= *kill_at_) {
            for (const RunningRank& rank : ranks_) signal_group(rank.child.pid, SIGKILL);
            kill_at_.reset();
        }
        // In the order of waits(); ranks that a command starts come behind these.
        std::size_t at = 3;
        for (auto rank = ranks_.begin(); rank != ranks_.end() && at < all.size(); at += 3) {
            for (int pipe = 0; pipe < 2; ++pipe) {
                if (all[at + 1 + pipe].revents != 0) copy(*rank, rank->pipes[pipe]);
            }
            if (all[at].revents == 0) {
                ++rank;
                continue;
            }
            end(*rank);
            rank = ranks_.erase(rank);
        }
        if (all[1].revents != 0) {
            for (const Command& command : link_->take()) obey(command);
            if (!link_->is_open()) orphaned();
        }
        if (all[2].revents != 0 && orphan_until_) {
            if (Fd socket = admit(door_)) {
                is_adopted_ = true;
                attach(std::move(socket));
            }
        }
    }
}

}  // namespace

int run_group_agent(Fd socket, const AgentOrder& order) {
    ::prctl(PR_SET_NAME, "fabric-agent");
    adopt_orphans();
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);  // a log that may not grow is an error of write(), not the end
    sigset_t ends;
    ::sigemptyset(&ends);
    // SIGINT of a terminal goes to the manager, whose word comes by the stream.
    for (const int number : {SIGTERM, SIGHUP, SIGINT}) ::sigaddset(&ends, number);
    ::pthread_sigmask(SIG_BLOCK, &ends, nullptr);
    Fd signals(::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals) return 1;
    ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
    GroupAgent group(std::move(socket), order, std::move(signals));
    return group.run();
}

}  // namespace fabricd
