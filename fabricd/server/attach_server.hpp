// AttachServer: connections of sessions, and the processes behind them. docs/protocol.md.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "fabricd/pool/registry.hpp"
#include "fabricd/server/admission.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/listener.hpp"
#include "fabricd/server/refusal_log.hpp"
#include "fabricd/server/request_stats.hpp"
#include "fabricd/telemetry/session_pages.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Beyond what the registry limits: a connection costs a descriptor before it is a session.
struct AttachLimits {
    int connections = 4096;  // of all users
    int connections_per_user = 1024;
    Duration hello_within = std::chrono::seconds(10);
    Bytes default_arena_bytes = 0;  // told to every client
};

/// Turns what happens on sockets and to processes into calls of the registry, and its answers into
/// packets. Everything that arrives is checked before it is used; nobody who is slow, silent or
/// wrong is waited for. Used by the control thread only.
class AttachServer {
  public:
    AttachServer(EventLoop& loop, Registry& registry, SessionPages& pages, Listener listener,
                 Admission admission, const AttachLimits& limits);
    ~AttachServer();
    AttachServer(const AttachServer&) = delete;
    AttachServer& operator=(const AttachServer&) = delete;

    /// Begins to accept, and to watch the processes of sessions known from the journal.
    Result<void> start();

    /// Sends what the registry has to say. After every call of the registry that is not ours.
    void deliver();

    /// Drops connections that never said hello, and lets the registry's deadlines pass. Cheap when
    /// nothing is due.
    void expire(TimePoint now);
    TimePoint next_deadline() const;

    const RequestStats& stats() const noexcept { return stats_; }

  private:
    /// An id of its own: a descriptor's number is used again at once.
    using ConnectionId = std::uint64_t;

    struct Connection {
        fabricshm::UnixSocket socket;
        Peer peer;
        EventLoop::WatchId watch = 0;
        SessionId session = SessionId::kNone;
        TimePoint hello_until;
    };
    /// The process of a session; outlives its connections.
    struct Process {
        fabricshm::Fd pidfd;
        EventLoop::WatchId watch = 0;
        ConnectionId connection = 0;
    };

    void take_connection(fabricshm::UnixSocket socket);
    bool has_room(std::uint32_t uid) const;
    void drop(ConnectionId id, const char* why);
    void read_from(ConnectionId id);
    bool read_one(ConnectionId id);
    bool handle(ConnectionId id, const fabricshm::proto::Message& request, std::size_t bytes,
                fabricshm::Fd descriptor);
    bool hello(ConnectionId id, const fabricshm::proto::Message& request);
    bool open_page(ConnectionId id, const fabricshm::proto::Message& request);
    Result<SessionId> greet(Connection& connection, const fabricshm::proto::Hello& wanted,
                            Token* token);
    Result<void> watch_process(SessionId session, fabricshm::Fd pidfd);
    void forget_process(SessionId session);
    void end_session(SessionId session, const char* why);
    void watch_restored();

    bool send(ConnectionId id, const fabricshm::proto::Message& reply, int descriptor);
    void tell_quotas(TimePoint now);
    bool refuse(ConnectionId id, const fabricshm::proto::Header& request, const Error& error);

    EventLoop& loop_;
    Registry& registry_;
    SessionPages& pages_;
    Listener listener_;
    Admission admission_;
    AttachLimits limits_;
    RefusalLog refusals_;
    RequestStats stats_;
    EventLoop::WatchId accepting_ = 0;

    std::map<ConnectionId, Connection> connections_;
    std::set<ConnectionId> greeting_;  // no hello yet; the first one has waited longest
    std::map<SessionId, Process> processes_;
    std::map<std::uint32_t, int> per_user_;
    ConnectionId last_ = 0;
    std::uint64_t quotas_told_ = 0;  // Registry::quota_changes() then
    TimePoint quotas_due_;           // when to tell again what is used, while one shrinks
};

}  // namespace fabricd
