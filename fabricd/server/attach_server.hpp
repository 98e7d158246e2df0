// AttachServer: connections of sessions, and the processes behind them. docs/protocol.md.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fabricd/pool/registry.hpp"
#include "fabricd/server/admission.hpp"
#include "fabricd/server/cluster_desk.hpp"
#include "fabricd/server/connection_places.hpp"
#include "fabricd/server/event_loop.hpp"
#include "fabricd/server/listener.hpp"
#include "fabricd/server/outbox.hpp"
#include "fabricd/server/refusal_log.hpp"
#include "fabricd/server/request_stats.hpp"
#include "fabricd/server/strangers.hpp"
#include "fabricd/telemetry/session_pages.hpp"
#include "libfabricshm/os/closer.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

struct ClusterView;
class RemoteHosts;

/// Beyond what the registry limits.
struct AttachLimits {
    PlaceLimits places;
    Duration hello_within = std::chrono::seconds(10);
    ReplyLimits replies;
    // Sent to every client: the size of an arena that is opened without one, which daemon this is,
    // and the UUID of its pool.
    Bytes default_arena_bytes = 0;
    std::array<std::uint8_t, 16> instance{};
    std::array<std::uint8_t, 16> pool{};
    std::string visibility;  // the pool's profile, where several hosts share it
    ClusterDesk cluster;     // for sessions that ask
    // Which answers to sessions of other hosts have to wait. Outlives the server; nullptr: none.
    RemoteHosts* guests = nullptr;
};

/// Turns what happens on sockets and to processes into calls of the registry, and its answers into
/// packets. A peer is admitted or refused before a byte of it is read. Everything that
/// arrives is checked before it is used; no peer that is slow, silent or wrong is waited for, nor
/// for what it sent to be closed. Used by the control thread only.
class AttachServer {
  public:
    /// What came from clients is closed by `closer`. The references outlive the server.
    AttachServer(EventLoop& loop, Registry& registry, SessionPages& pages,
                 fabricshm::Closer& closer, Listener listener, Admission admission,
                 const AttachLimits& limits);
    ~AttachServer();
    AttachServer(const AttachServer&) = delete;
    AttachServer& operator=(const AttachServer&) = delete;

    /// Begins to accept, and to watch the processes of sessions known from the journal. Sessions
    /// get the descriptor `links`, which outlives the server, with those of arenas that have a link
    /// page; -1: none.
    Result<void> start(int links = -1);

    /// Sends what the registry has to say. After every call of the registry that is not ours.
    void deliver();

    /// Drops connections that never said hello, and lets the registry's deadlines pass. Cheap when
    /// nothing is due.
    void expire(TimePoint now);
    TimePoint next_deadline() const;

    /// A peer that is admitted: a client of this host, or one of another host, `peer.host`, whose
    /// daemon hands its packets on through `socket`.
    void take(fabricshm::UnixSocket socket, const Peer& peer);

    /// Its process ended, or is given up; the connection goes as well.
    void end_session(SessionId session, const char* why, SessionEnd how = SessionEnd::kEnded);

    /// The session's operations are traced from now on, into `file`; with 0 bytes and no file: not
    /// any more. False when it has no connection now, or is of another host.
    bool trace(SessionId session, const fabricshm::proto::Trace& trace, fabricshm::Fd file);
    /// A line of the log about what a session wrote into one; bounded.
    void warn_of_trace(const std::string& line);

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
        bool is_greeted = false;
        Outbox outbox;           // while it holds something nothing of the peer is read
        TimePoint stalled_at{};  // its entry in stalled_
    };
    /// The process of a session; outlives its connections.
    struct Process {
        fabricshm::Fd pidfd;
        EventLoop::WatchId watch = 0;
        ConnectionId connection = 0;
    };

    void accept();
    void admit(fabricshm::UnixSocket socket);
    bool park(ConnectionId id);
    void release_parked(TimePoint now);
    void drop(ConnectionId id, const char* why);
    void read_from(ConnectionId id);
    bool read_one(ConnectionId id);
    bool end_of_packets(ConnectionId id, const Error& error);
    bool handle(ConnectionId id, const fabricshm::proto::Message& request, std::size_t bytes,
                std::vector<fabricshm::Fd>& descriptors);
    bool serve_request(ConnectionId id, const fabricshm::proto::Message& request,
                       std::vector<fabricshm::Fd>& descriptors);
    bool hello(ConnectionId id, const fabricshm::proto::Message& request);
    bool open_page(ConnectionId id, const fabricshm::proto::Message& request);
    Result<SessionId> greet(Connection& connection, const fabricshm::proto::Message& request,
                            Token* token);
    Result<void> watch_process(SessionId session, fabricshm::Fd pidfd);
    void forget_process(SessionId session);
    void watch_restored();

    bool send(ConnectionId id, Packet packet);
    bool send_held(ConnectionId id);
    void cut_off(ConnectionId id, const Error& error);
    void name_stalled(TimePoint now);
    void tell_quotas(TimePoint now);
    bool refuse(ConnectionId id, const fabricshm::proto::Header& request, const Error& error);

    EventLoop& loop_;
    Registry& registry_;
    int links_ = -1;  // see start()
    SessionPages& pages_;
    fabricshm::Closer& closer_;
    Listener listener_;
    Admission admission_;
    AttachLimits limits_;
    RequestStats stats_;
    ClientLog log_;
    EventLoop::WatchId accepting_ = 0;
    TimePoint accept_again_ = TimePoint::max();  // when it was given up for a moment

    std::map<ConnectionId, Connection> connections_;
    std::set<ConnectionId> parked_;  // not read for now, see park()
    TimePoint parked_until_{};
    std::set<std::pair<TimePoint, ConnectionId>> stalled_;  // to be named then
    std::set<ConnectionId> greeting_;  // no hello yet; the first one has waited longest
    std::map<SessionId, Process> processes_;
    Strangers strangers_;
    ConnectionPlaces places_;
    ConnectionId last_ = 0;
    std::uint64_t quotas_told_ = 0;  // Quotas::changes() then
    TimePoint quotas_due_;           // when to send again what is used, while one shrinks
};

}  // namespace fabricd
