#include "libfabricshm/client/session.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// The daemon answers a wait that ran out by itself; this is how long its kTimeout may take to come
// before we call the daemon silent.
constexpr Duration kAnswerGrace = std::chrono::seconds(5);

// Between two attempts to open a session while the daemon is away.
constexpr Duration kFirstPause = std::chrono::milliseconds(5);
constexpr Duration kLongestPause = std::chrono::milliseconds(50);
// Of the session's timeout at most so much: a restart takes less than a second, two with what
// systemd waits before it. A daemon that was stopped is not waited for half a minute.
constexpr Duration kMaxAway = std::chrono::seconds(5);

std::int64_t milliseconds_until(TimePoint deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    return std::clamp<std::int64_t>(left.count(), 0, proto::kTimeoutMsMax);
}

// Requests that wait in the daemon carry how long; false for all others.
// So that both sides end a wait at about the same time, and the daemon keeps no caller that has
// gone.
bool set_timeout(proto::Message& request, TimePoint deadline) {
    switch (proto::type_of(request.header)) {
        case proto::Type::kTensorOpen:
            request.tensor.timeout_ms = milliseconds_until(deadline);
            return true;
        case proto::Type::kShardOpen:
            request.shard.timeout_ms = milliseconds_until(deadline);
            return true;
        case proto::Type::kGroupJoin:
        case proto::Type::kGroupShrink:
            request.group.timeout_ms = milliseconds_until(deadline);
            return true;
        default:
            return false;
    }
}

std::string named(const UnixSocket& socket, const std::string& path) {
    const auto peer = socket.peer();
    // 0: of a pid namespace that this process does not see.
    const bool seen = peer.ok() && peer.value().pid > 0;
    return seen ? path + " (pid " + std::to_string(peer.value().pid) + ")" : path;
}

}  // namespace

class Session::Visit {
  public:
    explicit Visit(Session& session) : session_(session) {
        const std::lock_guard lock(session_.mutex_);
        ++session_.visitors_;
    }
    ~Visit() {
        const std::lock_guard lock(session_.mutex_);
        if (--session_.visitors_ == 0) session_.changed_.notify_all();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

  private:
    Session& session_;
};

Session::Session(SessionOptions options)
    : options_(std::move(options)), generation_(fork_guard::generation()) {}

Result<std::shared_ptr<Session>> Session::open(SessionOptions options) {
    std::shared_ptr<Session> session(new Session(std::move(options)));
    // Before the first connection, since the thread needs it from its first moment on.
    session->wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!session->wake_) return error_from_errno(errno, "make eventfd");
    const TimePoint deadline = session->default_deadline();
    FABRIC_TRY_VOID(session->attach_first(deadline));
    FAULT_POINT("session.attached");
    session->stay_ = stay_of(session->options_.sockets, session->identity_);
    session->line_.number = 1;
    session->state_ = State::kConnected;
    session->start_thread();
    return session;
}

// A daemon that is just being restarted is waited for, as by later calls: its socket is not there,
// or ends before it has answered.
Result<void> Session::attach_first(TimePoint deadline) {
    const Introduction introduction{options_.label, options_.device};
    LossNews none;  // a session that is new has no arenas
    const TimePoint back_until = std::min(deadline, deadline_from_now(kMaxAway));
    for (Duration pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
        auto socket = connect_first(options_.sockets, deadline);
        auto attached = socket.ok() ? greet(**socket, introduction, identity_, none, deadline)
                                    : Result<void>(socket.error());
        if (attached.ok()) {
            line_.socket = std::move(*socket);
            daemon_ = named(*line_.socket, options_.sockets.front());
            return {};
        }
        const bool is_away = attached.error().code == Errc::kDaemon;
        if (!is_away || !may_come_back(options_.sockets)) return attached;
        if (deadline_from_now(pause) >= back_until) return attached;
        std::this_thread::sleep_for(pause);
    }
}

Session::~Session() {
    close();
    // A child does not have the thread.
    if (!is_foreign()) delete thread_;
}

void Session::close() noexcept {
    if (is_foreign()) return;
    telemetry_.tell_latencies(monotonic_ns());
    std::unique_lock lock(mutex_);
    if (state_ != State::kClosed) {
        const bool said_hello = state_ == State::kConnected;
        state_ = State::kClosed;
        // Woken, they see kClosed by themselves.
        for (auto& [id, pending] : pending_) pending->answered.notify_all();
        changed_.notify_all();
        if (line_.socket != nullptr) {
            const auto bye = proto::make_request(proto::Type::kBye, ++last_request_);
            // Only a courtesy: the daemon sees the end of the connection anyway.
            const bool is_said =
                said_hello && line_.socket->send(proto::bytes_of(bye), {}, TimePoint{}).ok();
            if (is_said && stay_ != nullptr) {
                // The daemon closes it when it has done with the goodbye.
                stay_->hand_over(line_.socket);
                line_.socket->end_sending();
                wake_thread();
            } else {
                line_.socket->shut_down();
            }
        }
    }
    // Those inside use members of this object; the last one out wakes us.
    changed_.wait(lock, [this] { return visitors_ == 0; });
    lock.unlock();
    if (thread_ != nullptr && thread_->joinable()) thread_->join();
}

Result<proto::Message> Session::call(proto::Message request, const char* step, TimePoint deadline,
                                     Retry retry) {
    if (is_foreign()) return Error{Errc::kClosed, 0, step};
    const Visit visit(*this);
    std::uint64_t after = 0;
    for (;;) {
        FABRIC_TRY(const Line line, wait_for_line(after, deadline, step));
        Pending pending;
        FABRIC_TRY(const bool sent, attempt(line, request, step, deadline, pending));
        if (pending.outcome == Pending::Outcome::kAnswered) {
            if (pending.error.code == Errc::kOk) return pending.reply;
            // Its error may lack a step: the thread that took the reply does not know what was
            // called.
            if (*pending.error.step != '\0') return pending.error;
            // The reason is kept by the thread of the call: this one.
            return proto::error_of(pending.reply, step);
        }
        // The connection ended. What never left this process may always be sent again.
        if (sent && retry == Retry::kNever) return Error{Errc::kDaemon, 0, step};
        after = line.number;
    }
}

Result<Session::Line> Session::wait_for_line(std::uint64_t after, TimePoint deadline,
                                             const char* step) {
    std::unique_lock lock(mutex_);
    const auto settled = [&] {
        return state_ == State::kClosed || (state_ == State::kConnected && line_.number > after);
    };
    while (!settled()) {
        // By state and not by the clock: what settled in the last moment counts.
        if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !settled()) {
            const Error away{Errc::kDaemon, 0, step};
            return line_.why_away.empty() ? away : explain(away, "%s", line_.why_away.c_str());
        }
    }
    if (state_ == State::kClosed) return Error{Errc::kClosed, 0, step};
    return line_;
}

// True when the request was sent. The outcome is in `pending`.
Result<bool> Session::attempt(const Line& line, proto::Message& request, const char* step,
                              TimePoint deadline, Pending& pending) {
    std::unique_lock lock(mutex_);
    // What was posted before goes before: a group is left before the next one is asked for.
    const auto delivered = [&] {
        return outbox_.empty() || state_ != State::kConnected || line_.number != line.number;
    };
    while (!delivered()) {
        if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && !delivered()) {
            return Error{Errc::kDaemon, 0, step};
        }
    }
    // The line may have been lost since we asked for it: this pending would never be answered.
    if (state_ != State::kConnected || line_.number != line.number) return false;
    // A new number for each attempt: a late answer to the first must not be taken for one to the
    // second.
    request.header.request_id = ++last_request_;
    const std::uint64_t id = request.header.request_id;
    pending_[id] = &pending;
    lock.unlock();

    const bool waits = set_timeout(request, deadline);
    // The daemon ends the wait at `deadline` and says so; only its silence after that is an error
    // of its own.
    const TimePoint timeout = waits ? deadline_after(deadline, kAnswerGrace) : deadline;
    const auto sent = line.socket->send(proto::bytes_of(request), {}, timeout);

    lock.lock();
    Result<void> waited;
    if (sent.ok()) waited = await_reply(lock, request, step, timeout, pending);
    // Whatever happened: `pending` is on the caller's stack.
    pending_.erase(id);
    if (!waited.ok()) return waited.error();
    if (sent.ok()) return true;
    if (sent.error().code == Errc::kClosed) return false;
    const bool silent = sent.error().code == Errc::kTimeout;
    return silent ? Error{Errc::kDaemon, 0, step} : sent.error();
}

Result<void> Session::await_reply(std::unique_lock<std::mutex>& lock, const proto::Message& request,
                                  const char* step, TimePoint deadline, Pending& pending) {
    const auto settled = [&] {
        return state_ == State::kClosed || pending.outcome != Pending::Outcome::kNone;
    };
    while (!settled()) {
        if (pending.answered.wait_until(lock, deadline) == std::cv_status::timeout && !settled()) {
            // Its answer may still come, and may have made something: the thread takes that back,
            // see undo().
            abandoned_.insert(request.header.request_id);
            return Error{Errc::kDaemon, 0, step};
        }
    }
    if (pending.outcome == Pending::Outcome::kNone) return Error{Errc::kClosed, 0, step};
    return {};
}

void Session::post(proto::Message request) noexcept {
    if (is_foreign()) return;
    const Visit visit(*this);
    std::unique_lock lock(mutex_);
    if (state_ == State::kClosed) return;
    request.header.request_id = ++last_request_;
    // Behind what waits already. An attempt only: the thread sends what finds no room.
    // At once where nothing waits, so that most requests need no second thread.
    const bool at_once = state_ == State::kConnected && outbox_.empty();
    if (at_once && line_.socket->send(proto::bytes_of(request), {}, TimePoint{}).ok()) {
        return closings_.note_sent(request);
    }
    outbox_.push_back(request);
    wake_thread();
}

void Session::wake_thread() noexcept {
    const std::uint64_t one = 1;
    // Can't fail but for a count that is full, and then the thread is awake.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

Session::KnownArena Session::known_arena(std::uint64_t arena_id) const {
    const std::lock_guard lock(mutex_);
    const auto of = [&](const auto& all) {
        const auto found = all.find(arena_id);
        return found != all.end() ? found->second : nullptr;
    };
    return {of(arenas_), of(link_pages_), of(other_devices_), identity_.id, pin_files_, stay_};
}

bool Session::forget_arena(std::uint64_t arena_id, bool unless_mapped) noexcept {
    if (is_foreign()) return false;
    const std::lock_guard lock(mutex_);
    const auto is_mapped = [&](const auto& entry) {
        return entry.first == arena_id && !entry.second.expired();
    };
    if (unless_mapped && std::any_of(watches_.begin(), watches_.end(), is_mapped)) return false;
    arenas_.erase(arena_id);
    link_pages_.erase(arena_id);
    other_devices_.erase(arena_id);
    pin_files_->forget(arena_id);
    return true;
}

void Session::watch_losses(std::uint64_t arena_id, std::weak_ptr<PoisonWatch> watch) {
    const std::lock_guard lock(mutex_);
    // Arenas come and go; nothing reports when a watch is gone.
    std::erase_if(watches_, [](const auto& entry) { return entry.second.expired(); });
    watches_.emplace_back(arena_id, std::move(watch));
}

bool Session::is_foreign() const noexcept {
    return generation_ != fork_guard::generation();
}

TimePoint Session::default_deadline() const noexcept {
    return deadline_from_now(options_.timeout);
}

SessionIdentity Session::identity() const {
    const std::lock_guard lock(mutex_);
    return identity_;
}

bool Session::connected() const {
    const std::lock_guard lock(mutex_);
    return state_ == State::kConnected;
}

Identity place_of(const Session& session) {
    const SessionIdentity known = session.identity();
    return {own_host(), {known.instance, session.daemon()}, {known.pool}};
}

}  // namespace fabricshm
