// The thread that keeps a daemon's place in its cluster, and what others may ask of it.
// docs/hosts.md.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "fabricd/net/cluster_config.hpp"
#include "fabricd/net/cluster_view.hpp"
#include "fabricd/net/survivors.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

struct ClusterSetup {
    ClusterConfig config;
    HostRecord record;       // of this daemon
    std::string place_path;  // of the file that keeps its place
    /// MemberParts::end_shared_sessions; called on the cluster's thread.
    std::function<Result<void>()> end_shared_sessions;
};

/// One per daemon. Functions may be called from any thread.
class Cluster {
  public:
    /// Begins to join; returns before it has: a daemon serves its own host also while the store is
    /// away. kInvalid with the key to change. Alone, when the configuration names neither a store
    /// nor hosts: then there is no thread.
    static Result<std::unique_ptr<Cluster>> start(ClusterSetup setup);
    /// As stop(false).
    ~Cluster();
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;

    /// As it was after the last step, 100 ms ago at most while the store answers; the lease is as
    /// it is now.
    std::shared_ptr<const ClusterView> view() const;

    /// The same without the lease of now, and without a copy: for callers that ask often.
    std::shared_ptr<const ClusterView> last_view() const;

    /// Has the store write down which ranks of a group go on. Never waits: kPending until it has.
    Verdict settle(const Survivors& survivors);

    /// ClusterMember::confirm_fence() on the thread; waits for it, 10 s at most.
    Result<void> confirm_fence(const std::string& host);

    /// Ends the thread. With `is_empty`, when no session is left, the host leaves the cluster:
    /// nothing of it has to be fenced. Otherwise its lease goes on for the next daemon.
    void stop(bool is_empty);

  private:
    struct Impl;
    explicit Cluster(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
