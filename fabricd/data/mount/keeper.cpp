#include "fabricd/data/mount/keeper.hpp"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "fabricd/service/notify.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Duration;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::log;
using fabricshm::LogLevel;
using fabricshm::TimePoint;

namespace {

constexpr Duration kBetweenStarts = 20ms;  // of servers that had been ready
constexpr Duration kStandbyPause = 1s;     // behind one that had no turn
constexpr Duration kFirstPause = 10ms;     // behind one that had not; doubles
constexpr Duration kLongestPause = 5s;
constexpr Duration kLongestPauseKilled = 100ms;  // SIGKILL says nothing of the server
constexpr Duration kInitWait = 10s;
constexpr Duration kEndWait = 3s;

int milliseconds(Duration time) {
    const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(time).count();
    return static_cast<int>(std::clamp<std::int64_t>(rounded, 0, 60'000));
}

bool is_readable(const Fd& fd, Duration wait) {
    pollfd entry{fd.get(), POLLIN, 0};
    return ::poll(&entry, 1, milliseconds(wait)) > 0;
}

}  // namespace

Result<void> MountKeeper::mount() {
    FABRIC_TRY(const MountFacts facts, look_at_mount(options_.mount_point));
    if (facts.state == MountState::kLive || facts.state == MountState::kHung) {
        return explain({Errc::kBusy, 0, "mount"}, "%s is mounted already",
                       options_.mount_point.c_str());
    }
    if (facts.state == MountState::kDead) {
        FABRIC_TRY_VOID(unmount_lazily(options_.mount_point));
        log(LogLevel::kWarning, "fabric-mount-keeper: %s was a mount without its keeper: unmounted",
            options_.mount_point.c_str());
    }
    if (!options_.nonempty) FABRIC_TRY_VOID(check_empty(options_.mount_point));
    FABRIC_TRY(fuse_, mount_fuse(options_.mount_point, options_.allow_other));
    return {};
}

// The kernel says it once; every server begins with it.
Result<void> MountKeeper::read_init() {
    FABRIC_TRY(handover_, Handover::make());
    if (!is_readable(fuse_, kInitWait))
        return Error{Errc::kTimeout, 0, "wait for the kernel's INIT"};
    const auto slot = handover_.slot(0);
    const ssize_t got = ::read(fuse_.get(), slot.data(), slot.size());
    if (got < 0) return fabricshm::error_from_errno(errno, "read INIT");
    if (static_cast<std::size_t>(got) > kInitBytes) return Error{Errc::kVersion, 0, "read INIT"};
    HandoverHead& head = handover_.head();
    std::memcpy(head.init, slot.data(), static_cast<std::size_t>(got));
    head.init_bytes = static_cast<std::uint32_t>(got);
    handover_.request(0).unique = 0;
    return {};
}

// In the child: nothing but what the server needs. It ends with the keeper, since without one no
// other would come, and nothing would unmount.
void MountKeeper::become_server(pid_t keeper, const Fd& gate) const {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::setpgid(0, 0);  // a terminal's Ctrl-C is for the keeper
    // Out of the way first: one of them may have the number of the other's place.
    const int fuse = ::fcntl(fuse_.get(), F_DUPFD_CLOEXEC, 16);
    const int handover = ::fcntl(handover_.file().get(), F_DUPFD_CLOEXEC, 16);
    const int turn = ::fcntl(gate.get(), F_DUPFD_CLOEXEC, 16);
    if (::dup2(fuse, kFuseDescriptor) < 0 || ::dup2(handover, kHandoverDescriptor) < 0 ||
        ::dup2(turn, kGateDescriptor) < 0) {
        ::_exit(1);
    }
    if (!options_.user.empty()) {
        const passwd* const user = ::getpwnam(options_.user.c_str());
        if (user == nullptr || ::initgroups(user->pw_name, user->pw_gid) != 0 ||
            ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) != 0 ||
            ::setresuid(user->pw_uid, user->pw_uid, user->pw_uid) != 0) {
            std::fprintf(stderr, "fabric-mount: can't become user '%s'\n", options_.user.c_str());
            ::_exit(2);
        }
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // behind the change of user, which drops it
    if (::getppid() != keeper) ::_exit(1);
    std::vector<char*> words;
    for (const std::string& word : options_.command)
        words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    std::fprintf(stderr, "fabric-mount: can't run %s: %s\n", words[0], std::strerror(errno));
    ::_exit(1);
}

Result<MountKeeper::Server> MountKeeper::start_server() const {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fabricshm::error_from_errno(errno, "make gate");
    const Fd gate(ends[0]);
    Server server;
    server.gate = Fd(ends[1]);
    const pid_t keeper = ::getpid();
    server.process = ::fork();
    if (server.process < 0) return fabricshm::error_from_errno(errno, "fork");
    if (server.process == 0) become_server(keeper, gate);
    return server;
}

void MountKeeper::start_standby() {
    auto started = start_server();
    next_standby_ = Clock::now() + kStandbyPause;
    if (started.ok()) standby_ = std::move(started).value();
}

// It has no requests, so that nothing is lost with it.
void MountKeeper::end_standby() {
    if (standby_.process < 0) return;
    ::kill(standby_.process, SIGKILL);
    int status = 0;
    ::waitpid(standby_.process, &status, 0);
    standby_ = {};
}

// A standby that is still loading finds the byte when it gets there.
void MountKeeper::activate() {
    if (standby_.process < 0) start_standby();
    if (standby_.process < 0) {
        next_start_ = Clock::now() + kLongestPause;
        return;
    }
    // Acquire: with the count comes what the servers did before it.
    ready_before_ = handover_.head().servers.load(std::memory_order_acquire);
    next_start_ = Clock::now() + kBetweenStarts;
    [[maybe_unused]] const auto written = ::write(standby_.gate.get(), "!", 1);
    server_ = std::exchange(standby_, {}).process;
}

void MountKeeper::note_ready() {
    if (down_since_ == TimePoint{}) return;
    if (handover_.head().servers.load(std::memory_order_acquire) == ready_before_) return;
    down_since_ = {};
    failures_ = 0;
    next_standby_ = {};
    if (ready_before_ != 0) return;
    notify_systemd("READY=1", 1s);
    log(LogLevel::kInfo, "fabric-mount: %s is mounted", options_.mount_point.c_str());
    if (options_.ready >= 0) {
        // The process that started it may wait for the end of what it prints.
        const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
        ::dup2(nothing.get(), STDERR_FILENO);
        [[maybe_unused]] const auto written = ::write(options_.ready, "!", 1);
        ::close(options_.ready);
    }
}

// Against requests whose replay had begun: one of them may be what servers die of.
void MountKeeper::count_crash() const {
    for (std::size_t slot = 0; slot < kMountSlots; ++slot) {
        auto& replays = handover_.head().replays[slot];
        // Relaxed: the server that counted here has ended.
        const bool is_suspect =
            handover_.request(slot).unique != 0 && replays.load(std::memory_order_relaxed) != 0;
        if (is_suspect) replays.fetch_add(kReplaysOfCrash, std::memory_order_relaxed);
    }
}

// The code to end with, or nothing: another server is to be started.
std::optional<int> MountKeeper::note_death(int status) {
    server_ = -1;
    const std::uint64_t ready = handover_.head().servers.load(std::memory_order_acquire);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        log(LogLevel::kWarning, "fabric-mount: %s was unmounted by another process",
            options_.mount_point.c_str());
        return 0;
    }
    if (ready == 0) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    const TimePoint now = Clock::now();
    if (down_since_ == TimePoint{} || ready != ready_before_) down_since_ = now;
    const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!was_killed) count_crash();
    if (ready != ready_before_) {
        failures_ = 0;
    } else {
        const Duration pause = kFirstPause * (1 << std::min(failures_++, 12U));
        next_start_ = now + std::min(pause, was_killed ? kLongestPauseKilled : kLongestPause);
    }
    char how[32];
    std::snprintf(how, sizeof how, WIFSIGNALED(status) ? "signal %d" : "exit code %d",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    log(LogLevel::kWarning, "fabric-mount-keeper: the server ended (%s): another one in %d ms", how,
        milliseconds(std::max(next_start_ - now, Duration::zero())));
    return std::nullopt;
}

// Readers can't be ended while they wait: without a server for so long they get errors.
void MountKeeper::refuse_requests() const {
    for (std::size_t slot = 0; slot < kMountSlots; ++slot) {
        RequestHead& left = handover_.request(slot);
        if (left.unique != 0 && expects_reply(left.opcode)) reply_error(fuse_, left.unique, EIO);
        left.unique = 0;
    }
    const auto slot = handover_.slot(0);
    while (is_readable(fuse_, 0s) && ::read(fuse_.get(), slot.data(), slot.size()) > 0) {
        RequestHead& head = handover_.request(0);
        if (expects_reply(head.opcode)) reply_error(fuse_, head.unique, EIO);
        head.unique = 0;
    }
}

Duration MountKeeper::time_to_next_step() const {
    const TimePoint now = Clock::now();
    if (server_ < 0) return std::max(next_start_ - now, Duration::zero());
    if (down_since_ != TimePoint{}) return 5ms;
    return standby_.process < 0 ? std::max(next_standby_ - now, Duration::zero()) : Duration(60s);
}

// What is still open goes on until the server ends, and for longer than that it is not waited for.
int MountKeeper::end() {
    if (const auto gone = unmount_lazily(options_.mount_point); !gone.ok()) {
        log(LogLevel::kError, "fabric-mount-keeper: %s", explanation_of(gone.error()).c_str());
    }
    end_standby();
    const TimePoint until = Clock::now() + kEndWait;
    int status = 0;
    while (server_ > 0 && ::waitpid(server_, &status, WNOHANG) == 0) {
        if (Clock::now() > until) {
            log(LogLevel::kWarning,
                "fabric-mount-keeper: files of %s are still open: they get errors",
                options_.mount_point.c_str());
            ::kill(server_, SIGKILL);
            ::waitpid(server_, &status, 0);
            break;
        }
        ::poll(nullptr, 0, 5);
    }
    return 0;
}

// As note_death() of the server. Another standby comes when it is time.
std::optional<int> MountKeeper::reap() {
    int status = 0;
    if (standby_.process > 0 && ::waitpid(standby_.process, &status, WNOHANG) > 0) standby_ = {};
    if (server_ > 0 && ::waitpid(server_, &status, WNOHANG) == server_) return note_death(status);
    return std::nullopt;
}

int MountKeeper::run() {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&signals, number);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    auto begun = mount();
    const bool mounted = begun.ok();
    if (begun.ok()) begun = read_init();
    if (!begun.ok()) {
        std::fprintf(stderr, "fabric-mount: %s\n", explanation_of(begun.error()).c_str());
        if (mounted) static_cast<void>(unmount_lazily(options_.mount_point));
        return 1;
    }
    down_since_ = Clock::now();
    for (;;) {
        const TimePoint now = Clock::now();
        if (server_ < 0 && now >= next_start_) activate();
        const bool is_served = server_ > 0 && down_since_ == TimePoint{};
        if (is_served && standby_.process < 0 && now >= next_standby_) start_standby();
        const bool is_asked = is_readable(signals_, time_to_next_step());
        note_ready();
        signalfd_siginfo info{};
        while (is_asked && ::read(signals_.get(), &info, sizeof info) == sizeof info) {
            if (info.ssi_signo != SIGCHLD) return end();
        }
        if (const auto code = reap(); code) {
            static_cast<void>(unmount_lazily(options_.mount_point));
            end_standby();
            return *code;
        }
        const bool is_long =
            down_since_ != TimePoint{} && Clock::now() - down_since_ > options_.timeout;
        if (is_long && server_ < 0) refuse_requests();
    }
}

}  // namespace fabricd
