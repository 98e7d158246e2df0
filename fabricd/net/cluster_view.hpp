// What of a cluster is shown to people, to metrics and to sessions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/net/cluster_member.hpp"
#include "fabricd/net/host_table.hpp"

namespace fabricd {

/// What a lost incarnation waits for, or how it was fenced: proto::FenceStage.
enum class FenceStage {
    kNone,
    kPerson,
    kCommand,
    kFailed,
    kCommanded,
    kBoot,
    kSelf,
    kLeft,
    kOperator,
    kOther,
};

/// One incarnation of a host.
struct HostView {
    std::string name;
    Incarnation incarnation = 0;
    HostState state = HostState::kListed;
    bool is_newest = false;
    bool is_self = false;
    std::int64_t state_ms = 0;  // how long it has been in this state
    std::string pool;
    std::string address;
    std::string fence;  // of a lost one: what it waits for; of a fenced one: how it was
    FenceStage fence_stage = FenceStage::kNone;  // the same
};

struct ClusterView {
    std::string cluster;          // its name; "": this daemon is alone
    std::string store;            // "etcd", "static", "none"
    std::string host;             // this one
    Incarnation incarnation = 0;  // 0: it has no place, or needs none
    LeaseStanding lease = LeaseStanding::kNone;
    std::int64_t lease_ms = 0;  // until sessions on shared memory end; of a held or stale lease
    bool admits = false;        // whether groups over several hosts may be made
    BootTime admits_until = BootTime::max();  // and so long: by the lease, if it is not renewed
    std::string trouble;                      // with the store; "": none
    MemberCounts counts;
    std::uint64_t version = 0;    // rises with what sessions see of the hosts
    std::vector<HostView> hosts;  // by name, the newest incarnation of each first
};

/// Whether groups over several hosts may be made at `now`, however old the view is: the daemon may
/// have stood still since it was made.
inline bool admits_at(const ClusterView& view, BootTime now) noexcept {
    return view.admits && now < view.admits_until;
}

const char* name_of(LeaseStanding standing) noexcept;

/// "lost" for incarnations whose ranks are given up, which is also "fenced".
bool is_gone(HostState state) noexcept;

/// The host that shows them. Another daemon may have its name: its own is this incarnation alone,
/// and none while it is 0, but on a static list, which has no incarnations.
struct OwnPlace {
    std::string host;
    Incarnation incarnation = 0;
};

/// The hosts of the tables as they are shown.
std::vector<HostView> host_views(const HostTable& table, const FenceTable& fences,
                                 const OwnPlace& own, BootTime now);

/// The lines for Prometheus.
std::string cluster_metrics(const ClusterView& view);

}  // namespace fabricd
