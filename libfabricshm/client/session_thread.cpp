// The session's own thread: it reads replies, and attaches again when the daemon was away.

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

constexpr Duration kBackOffFirst = std::chrono::milliseconds(50);
constexpr Duration kMaxBackOff = std::chrono::seconds(1);

// A restarted daemon answers at once or is busy reading its journal.
constexpr Duration kGreetTimeout = std::chrono::seconds(5);

// The request that returns what an answer gave when its caller no longer waits for it; false when
// there is nothing to return.
// Not for an arena: other handles of this session may have it open.
bool counterpart(const proto::Message& reply, proto::Message& request) {
    switch (proto::type_of(reply.header)) {
        case proto::Type::kRegionCreate:
            request = proto::make_request(proto::Type::kRegionFree, 0);
            request.region = reply.region;
            return true;
        case proto::Type::kTensorCreate:
            request = proto::make_request(proto::Type::kTensorFree, 0);
            request.tensor = reply.tensor;
            return true;
        case proto::Type::kShardCreate:
        case proto::Type::kShardOpen: {
            const bool made = proto::type_of(reply.header) == proto::Type::kShardCreate;
            const auto back = made ? proto::Type::kShardFree : proto::Type::kShardClose;
            request = proto::make_request(back, 0);
            request.shard = reply.shard;
            return true;
        }
        case proto::Type::kGroupJoin:
        case proto::Type::kGroupShrink:
            request = proto::make_request(proto::Type::kGroupLeave, 0);
            request.group = reply.group;
            return true;
        default:
            return false;
    }
}

// Signals are for the program's own threads: handlers should not run on one that it does not know
// of. A new thread inherits the mask.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_;
};

/// The descriptors of a session's arenas.
struct Files {
    ArenaDescriptors& arenas;
    ArenaDescriptors& links;
    OtherDescriptors& others;
};

// Keeps the files of an arena that is not known. Those `of_device` a child of fork() closes, as it
// does not get the memory.
Error keep(const proto::ArenaOpen& opened, const Received& received,
           fork_guard::Incoming& descriptors, bool of_device, const Files& files) {
    const bool is_known = files.arenas.count(opened.arena_id) != 0;
    if (!is_known && received.lacks_descriptors) {
        return {Errc::kSystem, EMFILE, "open arena: no room for its descriptors (RLIMIT_NOFILE)"};
    }
    const std::size_t count = proto::stripes_of(opened).files;
    const bool is_whole = descriptors.has(0, count);
    if (!is_known && !is_whole) return {Errc::kCorrupt, 0, "arena_open without a descriptor"};
    if (!is_known) {
        files.arenas[opened.arena_id] =
            of_device ? descriptors.keep(0) : std::make_shared<const Fd>(descriptors.take(0));
    }
    if (!is_known && count > 1) files.others[opened.arena_id] = descriptors.keep(1, count - 1);
    if (count == 1 && descriptors.has(1)) {
        // The newest: a daemon that was started again has another page. No arena has both.
        files.links[opened.arena_id] = std::make_shared<const Fd>(descriptors.take(1));
    }
    return {Errc::kOk, 0, ""};
}

}  // namespace

void Session::start_thread() {
    const SignalsBlocked blocked;
    // By hand, see thread_: std::thread as a member would terminate a forked child.
    thread_ = new std::thread([this] { run(); });
    // Shown by top -H.
    ::pthread_setname_np(thread_->native_handle(), "fabric-session");
}

void Session::run() noexcept {
    for (;;) {
        std::shared_ptr<const UnixSocket> socket;
        {
            const std::lock_guard lock(mutex_);
            socket = line_.socket;
        }
        // Returns at the end of the connection, whichever side ended it.
        serve(*socket);
        if (!lose_line() || !reconnect()) return;
    }
}

// Hands out replies until the connection ends.
void Session::serve(const UnixSocket& socket) {
    while (deliver_until_readable(socket)) {
        proto::Message reply;
        std::memset(&reply, 0, sizeof reply);
        // Arenas and pages come with one; arenas of an emulated machine with the pool's links, too,
        // those on several devices with one for each.
        fork_guard::Incoming descriptors;
        const auto received =
            descriptors.receive(socket, proto::writable_bytes_of(reply), TimePoint::max());
        if (!received.ok()) {
            if (received.error().code != Errc::kClosed) {
                log(LogLevel::kError, "%s", describe(received.error()).c_str());
            }
            return;
        }
        dispatch(reply, *received, descriptors);
    }
}

// Sends what is posted as soon as the socket has room, until there is something to read. False when
// waiting itself fails.
bool Session::deliver_until_readable(const UnixSocket& socket) {
    for (;;) {
        bool left = false;
        {
            const std::lock_guard lock(mutex_);
            // close() leaves the end of such a line to another reader.
            if (state_ == State::kClosed) return false;
            // Under the lock: posts of other threads either come before this or find the thread
            // asleep and wake it.
            const bool any = !outbox_.empty();
            const auto flushed = flush_outbox(socket);
            left = flushed.ok() && *flushed;          // the read reports a failure, too
            if (any && !left) changed_.notify_all();  // calls wait for what was posted before them
        }
        const auto room = static_cast<short>(left ? POLLOUT : 0);
        // The wake eventfd stands for everything that is no packet.
        pollfd entries[] = {{socket.get(), static_cast<short>(POLLIN | room), 0},
                            {wake_.get(), POLLIN, 0}};
        if (::poll(entries, 2, -1) < 0 && errno != EINTR) {
            log(LogLevel::kError, "%s", describe(error_from_errno(errno, "poll")).c_str());
            return false;
        }
        std::uint64_t drained = 0;
        if (entries[1].revents != 0) {
            [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &drained, sizeof drained);
        }
        if ((entries[0].revents & ~POLLOUT) != 0) return true;
    }
}

// Sends what the socket has room for, under the lock; true when something is left. What was sent is
// out of the outbox, so that it is not sent again over the next connection.
Result<bool> Session::flush_outbox(const UnixSocket& socket) {
    while (!outbox_.empty()) {
        const auto sent = socket.send(proto::bytes_of(outbox_.front()), {}, TimePoint{});
        if (!sent.ok() && sent.error().code == Errc::kTimeout) return true;
        if (!sent.ok()) return sent.error();
        closings_.note_sent(outbox_.front());
        outbox_.pop_front();
    }
    return false;
}

void Session::dispatch(const proto::Message& reply, const Received& received,
                       fork_guard::Incoming& descriptors) {
    const auto valid = proto::check_reply(reply, received.bytes);
    const bool succeeded = valid.ok() && reply.header.status == 0;
    if (valid.ok() && take_page(reply, descriptors)) return;
    if (proto::is_news(reply.header)) {
        const bool is_loss = proto::type_of(reply.header) == proto::Type::kPoisoned;
        return succeeded && is_loss ? learn_loss(reply.region) : void();
    }
    std::unique_lock lock(mutex_);
    if (valid.ok()) closings_.note_answer(reply);
    const auto found = pending_.find(reply.header.request_id);
    if (found == pending_.end()) {
        // A caller that gave up, or an answer without a request; the latter is dropped.
        const bool late = abandoned_.erase(reply.header.request_id) != 0;
        lock.unlock();
        if (late && succeeded) undo(reply);
        return;
    }
    Pending& pending = *found->second;
    if (!valid.ok()) {
        pending.error = valid.error();
    } else if (!succeeded) {
        pending.error = proto::error_of(reply.header, "");
    } else if (proto::type_of(reply.header) == proto::Type::kArenaOpen) {
        // Before the caller wakes: a daemon that dies right now has to be shown them again.
        pending.error = keep(reply.arena_open, received, descriptors, is_on_device(identity_),
                             {arenas_, link_pages_, other_devices_});
        if (pending.error.detail == EMFILE) {
            // Before the caller can ask for it again.
            outbox_.push_back(proto::make_request(proto::Type::kArenaClose, ++last_request_));
            outbox_.back().arena.arena_id = reply.arena_open.arena_id;
        }
    }
    const bool is_page = proto::type_of(reply.header) == proto::Type::kPinPage;
    if (valid.ok() && succeeded && is_page && descriptors.has(0)) {
        // Before the caller wakes, as above.
        pin_files_->keep(reply.pin_page, reply.pin_page.session_id == identity_.id,
                         descriptors.take(0));
    }
    pending.reply = reply;
    pending.outcome = Pending::Outcome::kAnswered;
    // Under the lock: the pending is on the stack of a caller that goes on as soon as it may.
    pending.answered.notify_all();
}

// Not an answer: some process of the job touched memory that the hardware lost. Operations on it
// fail from here on, in this process too.
void Session::learn_loss(const proto::Region& news) {
    log(LogLevel::kError, "the hardware lost %llu bytes at offset %llu of arena %llu (region %llu)",
        static_cast<unsigned long long>(news.bytes), static_cast<unsigned long long>(news.offset),
        static_cast<unsigned long long>(news.arena_id),
        static_cast<unsigned long long>(news.region_id));
    const std::lock_guard lock(mutex_);
    for (const auto& [arena, watch] : watches_) {
        const auto alive = arena == news.arena_id ? watch.lock() : nullptr;
        if (alive != nullptr) alive->learn({news.offset, news.bytes});
    }
}

void Session::undo(const proto::Message& reply) {
    proto::Message request;
    if (counterpart(reply, request)) post(request);
}

// False when the session is being closed.
bool Session::lose_line() {
    const std::lock_guard lock(mutex_);
    // Before the calls in flight are notified of a loss: close() has given them another outcome.
    if (state_ == State::kClosed) return false;
    for (auto& [id, pending] : pending_) {
        if (pending->outcome != Pending::Outcome::kNone) continue;
        pending->outcome = Pending::Outcome::kLost;
        pending->answered.notify_all();
    }
    // Answers to what was sent over the old connection can't come any more.
    abandoned_.clear();
    state_ = State::kAway;
    line_.socket.reset();
    log(LogLevel::kInfo, "fabricd closed the connection; waiting for its return");
    return true;
}

// False when the session is being closed.
bool Session::reconnect() {
    Errc last = Errc::kDaemon;
    // Doubled each time: an absence of a moment is over soon, one of hours costs little.
    for (Duration pause = kBackOffFirst;; pause = std::min(pause * 2, kMaxBackOff)) {
        {
            std::unique_lock lock(mutex_);
            const auto closed = [this] { return state_ == State::kClosed; };
            if (changed_.wait_for(lock, pause, closed)) return false;
        }
        const auto attached = attach_again();
        if (attached.ok()) return true;
        {
            const std::lock_guard lock(mutex_);
            line_.why_away = explanation_of(attached.error());
        }
        // Each new reason once, or the log would fill while an operator works on the daemon.
        if (attached.error().code != last) {
            last = attached.error().code;
            log(LogLevel::kWarning, "can't attach again: %s", describe(attached.error()).c_str());
        }
    }
}

Result<void> Session::attach_again() {
    SessionIdentity identity;
    ArenaDescriptors arenas;
    OtherDescriptors others;
    const OwnPinPages pages = pin_files_->all_own();
    {
        const std::lock_guard lock(mutex_);
        identity = identity_;
        arenas = arenas_;
        others = other_devices_;
    }
    auto resumed = resume(identity, arenas, others, pages);
    const bool unknown = !resumed.ok() && (resumed.error().code == Errc::kNotFound ||
                                           resumed.error().code == Errc::kDenied);
    if (!unknown) return resumed;
    // A daemon without our past: its journal is gone, or it gave us up. The ids of our arenas may
    // mean others there, so none of them is taken along; opening them again works.
    log(LogLevel::kWarning, "fabricd does not know session %llu any more; its arenas are lost",
        static_cast<unsigned long long>(identity.id));
    return resume(SessionIdentity{}, ArenaDescriptors{}, OtherDescriptors{}, OwnPinPages{});
}

// One connection, greeted as `identity`, with `arenas` presented.
Result<void> Session::resume(SessionIdentity identity, const ArenaDescriptors& arenas,
                             const OtherDescriptors& others, const OwnPinPages& pages) {
    // A second for the connect: a daemon that listens accepts at once.
    FABRIC_TRY(auto socket, connect_first(options_.sockets, Clock::now() + kMaxBackOff));
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::kClosed) return Error{Errc::kClosed, 0, "attach"};
        line_.socket = socket;  // so that close() can end the greeting
    }
    const bool fresh = identity.id == 0;
    const TimePoint deadline = Clock::now() + kGreetTimeout;
    LossNews news;
    FABRIC_TRY_VOID(greet(*socket, {options_.label, options_.device}, identity, news, deadline));
    FAULT_POINT("session.greeted_again");
    auto presented = present_arenas(*socket, arenas, others, news, deadline);
    if (presented.ok()) presented = present_pin_pages(*socket, pages, news, deadline);
    for (const proto::Region& loss : news) learn_loss(loss);
    FABRIC_TRY_VOID(presented);
    FAULT_POINT("session.arenas_presented");

    const std::lock_guard lock(mutex_);
    if (state_ == State::kClosed) return Error{Errc::kClosed, 0, "attach"};
    if (fresh) {
        // Of a session that is gone: what was posted there means nothing to the new one.
        arenas_.clear();
        other_devices_.clear();
        pin_files_->clear();
        outbox_.clear();
        closings_.clear();
    }
    // Before any new call, since a new region may need what an old one gives back. What does not
    // fit follows when the daemon has read some.
    identity_ = identity;
    // That of before goes with the last arena that is mapped.
    if (fresh) stay_ = stay_of(options_.sockets, identity_);
    closings_.send_again(outbox_);
    ask_for_pages();
    FABRIC_TRY_VOID(flush_outbox(*socket));
    ++line_.number;
    line_.why_away.clear();
    state_ = State::kConnected;
    changed_.notify_all();
    log(LogLevel::kInfo, "attached again to fabricd as session %llu",
        static_cast<unsigned long long>(identity.id));
    return {};
}

}  // namespace fabricshm
