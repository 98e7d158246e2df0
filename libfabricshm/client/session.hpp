// Session: this process's attachment to fabricd, over one socket after the other.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/closings.hpp"
#include "libfabricshm/client/connection.hpp"
#include "libfabricshm/client/farewell.hpp"
#include "libfabricshm/client/pin_files.hpp"
#include "libfabricshm/client/telemetry.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/identity.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

namespace fork_guard {
class Incoming;
}

struct SessionOptions {
    std::vector<std::string> sockets;             // tried in this order
    Duration timeout = std::chrono::seconds(30);  // of calls that give none
    std::string label;
    std::string device;  // of the daemon's device file; "": none
};

/// What a call may do when the daemon dies before it answered. Only what changes nothing, or what
/// the daemon takes twice from the same session, may be asked again.
enum class Retry { kNever, kHarmless };

/// Thread-safe. A thread of its own sleeps on the socket, hands replies to the callers that wait
/// for them, and connects again (after 50 ms, then up to 1 s) when the daemon went away, for as
/// long as the session is open. Calls made meanwhile wait for its return up to their deadlines.
class Session {
  public:
    /// Attaches. kDaemon: no daemon listens. kDenied, kBusy (draining), kVersion from the daemon.
    static Result<std::shared_ptr<Session>> open(SessionOptions options);

    /// Close first; a session of a forked parent is left alone instead.
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Says goodbye, ends the thread and every call in flight (kClosed). Idempotent. In a forked
    /// child nothing happens: the session is the parent's.
    void close() noexcept;

    /// Sends `request` (its id is set here) and waits for the reply. Errors are the daemon's, or
    /// kDaemon when it does not answer in time, kClosed after close() and in a forked child. A
    /// request that waits in the daemon gets the time that is left as its timeout; its own answer
    /// kTimeout is waited for a little longer.
    Result<proto::Message> call(proto::Message request, const char* step, TimePoint deadline,
                                Retry retry);

    /// Sends a request whose answer does not matter: now, or when the socket has room, or after the
    /// daemon's return. Never waits. Arrives before all that is posted or called later.
    void post(proto::Message request) noexcept;

    /// The descriptor that came with the answer to an arena_open, and the daemon's number for the
    /// session that opened it; nullptr for another id. The session keeps it, to present it after a
    /// restart, until forget_arena().
    struct KnownArena {
        std::shared_ptr<const Fd> descriptor;
        std::shared_ptr<const Fd> links;  // the pool's link page; nullptr: there is none
        // Of an arena on several devices: those after `descriptor`; else nullptr.
        std::shared_ptr<const std::vector<Fd>> others;
        std::uint64_t session_id = 0;
        std::shared_ptr<PinFiles> pins;  // of all arenas of the session
        std::shared_ptr<Stay> stay;  // to be held for as long as the arena is mapped; may be null
    };
    KnownArena known_arena(std::uint64_t arena_id) const;
    /// `unless_mapped`: false, and nothing happens, while a part of the process has it mapped, by
    /// watch_losses().
    bool forget_arena(std::uint64_t arena_id, bool unless_mapped = false) noexcept;

    /// From now on `watch` learns what the daemon says about lost memory of the arena.
    void watch_losses(std::uint64_t arena_id, std::weak_ptr<PoisonWatch> watch);

    /// Reports a step to the daemon. The first call asks for the pages; none ever waits for them.
    void step(const StepInfo& info);

    /// Where the reads of a shard are counted. Asks for the pages as step() does.
    std::shared_ptr<ShardMeter> count_shard(std::uint64_t arena_id, std::uint64_t region_id);
    /// Counts a read that ended; see Telemetry::count_read(). Some 15 ns.
    void count_read(ShardMeter& meter, Bytes bytes) noexcept;
    /// Shows what was counted: a handle is being closed.
    void tell_shards() noexcept;

    /// Shows a wait that has become long; see Telemetry::show_wait(). Asks for the pages as step()
    /// does.
    int show_wait(int place, const WaitRecord& record) noexcept;
    void hide_wait(int place) noexcept;

    /// Where groups are counted and peers' reads noted.
    Telemetry& telemetry() noexcept { return telemetry_; }

    /// The directives in force; serial 0: none, or none yet.
    DirectiveImage directives();

    /// The limits that the daemon last published; serial 0: none yet.
    QuotaImage quotas();

    /// True in a child of the process that opened the session.
    bool is_foreign() const noexcept;

    Duration timeout() const noexcept { return options_.timeout; }
    const std::string& device() const noexcept { return options_.device; }
    /// The socket and the process of the daemon that it was opened with, for people.
    const std::string& daemon() const noexcept { return daemon_; }
    /// now + timeout().
    TimePoint default_deadline() const noexcept;

    /// The daemon's number for this session, and how often it was started. For tests and logs.
    SessionIdentity identity() const;
    bool connected() const;

  private:
    enum class State { kConnected, kAway, kClosed };

    // A call that waits for its reply; lives on the caller's stack, under mutex_.
    struct Pending {
        enum class Outcome { kNone, kAnswered, kLost };
        std::condition_variable answered;
        Outcome outcome = Outcome::kNone;
        Error error{Errc::kOk, 0, ""};
        proto::Message reply;
    };

    struct Line {  // the connection of one attempt
        std::shared_ptr<const UnixSocket> socket;
        std::uint64_t number = 0;
        std::string why_away = {};  // the daemon is, as the last try to attach again found
    };

    // Counts callers inside, so that the destructor knows when the last one left.
    class Visit;

    explicit Session(SessionOptions options);
    Result<Line> wait_for_line(std::uint64_t after, TimePoint deadline, const char* step);
    Result<bool> attempt(const Line& line, proto::Message& request, const char* step,
                         TimePoint deadline, Pending& pending);
    Result<void> await_reply(std::unique_lock<std::mutex>& lock, const proto::Message& request,
                             const char* step, TimePoint deadline, Pending& pending);

    void run() noexcept;
    void serve(const UnixSocket& socket);
    bool deliver_until_readable(const UnixSocket& socket);
    Result<bool> flush_outbox(const UnixSocket& socket);
    void dispatch(const proto::Message& reply, const Received& received,
                  fork_guard::Incoming& descriptors);
    void undo(const proto::Message& reply);
    void learn_loss(const proto::Region& news);
    void wake_thread() noexcept;
    void want_pages();
    void ask_for_pages();
    bool take_page(const proto::Message& reply, fork_guard::Incoming& descriptors);
    bool lose_line();
    bool reconnect();
    Result<void> attach_first(TimePoint deadline);
    Result<void> attach_again();
    Result<void> resume(SessionIdentity identity, const ArenaDescriptors& arenas,
                        const OtherDescriptors& others, const OwnPinPages& pages);
    void start_thread();

    SessionOptions options_;
    const std::uint32_t generation_;
    std::string daemon_;  // written before any other thread has the session

    mutable std::mutex mutex_;
    std::condition_variable changed_;  // state_ or visitors_
    State state_ = State::kAway;
    SessionIdentity identity_;
    Line line_;  // socket: also while it is being greeted
    std::unordered_map<std::uint64_t, Pending*> pending_;
    std::unordered_set<std::uint64_t> abandoned_;  // ids whose callers gave up
    std::deque<proto::Message> outbox_;            // posted, and not sent yet
    Closings closings_;                            // sent, and not answered yet
    std::shared_ptr<Stay> stay_;                   // where several hosts share the pool
    Fd wake_;  // an eventfd: something came into the outbox, and the thread may be asleep
    ArenaDescriptors arenas_;
    ArenaDescriptors link_pages_;     // those that came with them
    OtherDescriptors other_devices_;  // likewise
    const std::shared_ptr<PinFiles> pin_files_ = std::make_shared<PinFiles>();
    std::vector<std::pair<std::uint64_t, std::weak_ptr<PoisonWatch>>> watches_;  // by arena
    std::uint64_t last_request_ = 0;
    int visitors_ = 0;

    Telemetry telemetry_;
    std::atomic<bool> pages_wanted_{false};
    // Of which session and which start of the daemon the pages were asked. Asked once each, so that
    // a daemon which does not like the question is not asked for ever.
    std::pair<std::uint64_t, std::uint64_t> pages_asked_{};

    std::thread* thread_ =
        nullptr;  // not a member: a forked child must neither join nor destroy it
};

/// Where the session is attached: host, daemon and pool. What ranks compare that come together.
Identity place_of(const Session& session);

}  // namespace fabricshm
