// RemoteHosts: at the owner of a pool, what becomes of the sessions of other hosts.
// docs/hosts.md, "One pool, several hosts".

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/net/cluster_view.hpp"
#include "fabricd/pool/registry.hpp"
#include "fabricd/server/range_flusher.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

/// Their processes are watched by their own host's daemon, which says when one ends. While that is
/// silent nothing is known of them: then their ranks are given up, and what they hold is kept until
/// it is known that they write no more. Used by the control thread only.
class RemoteHosts {
  public:
    /// `end` ends a session, or gives it up. The registry outlives this.
    RemoteHosts(Registry& registry,
                std::function<void(SessionId, const char* why, SessionEnd how)> end)
        : registry_(registry), end_(std::move(end)) {}

    /// The process of a session has ended, says the daemon of `host`. It speaks for processes that
    /// it can see alone.
    void ended(const Peer& host, SessionId session);

    /// As ended(), but what the process wrote is in its host's caches still: ended() follows.
    void died(const Peer& host, SessionId session);

    /// A session of that host presented other files than the pool's: nothing is granted to it in
    /// the arena, as to one of this host.
    void presented_others(const Peer& host, SessionId session, ArenaId arena);

    /// The daemon of a host is here, again perhaps. Of its sessions those of another boot of the
    /// same machine are over; those whose processes it sees are returned. kDenied: sessions of
    /// another machine have this name, and may write.
    Result<std::vector<RemoteSession>> greet(const Peer& host);

    /// A person's word that a host writes no more: ends its sessions that were given up. How many.
    int fence(const std::string& host);

    /// Of hosts that the cluster calls lost the sessions are given up, of fenced ones they end.
    /// Looks every 100 ms; nullptr: there is no cluster.
    void judge(const std::shared_ptr<const ClusterView>& view, TimePoint now);
    /// When to call judge() next; never while there is no session of another host.
    TimePoint next_deadline() const noexcept {
        return registry_.has_remote_sessions() ? judge_at_ : TimePoint::max();
    }

    /// Where this host's caches are not coherent with others': `flush` writes a range of the pool
    /// out of them, on a thread of its own; `post` has a task done on the control thread, or is
    /// false.
    void write_out_by(RangeFlusher::Flush flush, std::function<bool(std::function<void()>)> post);

    /// True: `reply` grants a session of another host a region that has to leave this host's caches
    /// first. `send` is called later, with it or with a refusal in its place. False: it may go.
    bool holds(SessionId session, const fabricshm::proto::Message& reply,
               std::function<void(const fabricshm::proto::Message&)> send);

  private:
    void written_out(SessionId session, const fabricshm::proto::Message& reply,
                     const Result<void>& flushed,
                     const std::function<void(const fabricshm::proto::Message&)>& send);
    bool is_of(const Peer& host, SessionId session) const;

    Registry& registry_;
    const std::function<void(SessionId, const char* why, SessionEnd how)> end_;
    TimePoint judge_at_{};
    std::function<bool(std::function<void()>)> post_;
    std::unique_ptr<RangeFlusher> flusher_;  // nullptr: nothing has to leave the caches
};

}  // namespace fabricd
