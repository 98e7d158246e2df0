// Where the hosts of a cluster find each other: etcd, and in tests what stands in for it.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fabricd/net/boot_clock.hpp"
#include "fabricd/net/fence.hpp"
#include "fabricd/net/host_record.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

using fabricshm::Duration;
using fabricshm::Result;

/// A lease as the store gave or renewed it. `sent` is when the request was sent that was answered.
struct StoreLease {
    Duration ttl{};
    BootTime sent{};
};

/// This host's place in the cluster. `lease` is the store's number for it.
struct HostPlace {
    Incarnation incarnation = 0;
    std::int64_t lease = 0;
    StoreLease times;
};

/// What changed since the call before, in that order: hosts, deletions, fences.
struct StoreNews {
    bool is_whole = false;  // all that there is: hosts that are not in it have no record any more
    bool data_lost =
        false;  // with is_whole: the store began from nothing, and lost no lease by that
    std::vector<std::pair<std::string, HostRecord>> hosts;
    std::vector<std::pair<std::string, Incarnation>> deleted;
    std::vector<std::pair<FenceKey, FenceRecord>> fences;
};

/// For one thread. No call waits longer than some seconds, whatever the store does: kTimeout when
/// no member of it answers, after which the call may have had its effect; kDenied when it refuses
/// this host; kCorrupt for an answer that contradicts itself. After each of them the same call may
/// be made again.
class ClusterStore {
  public:
    virtual ~ClusterStore() = default;

    /// No later call waits beyond this, but for the 50 ms that one is given at least.
    virtual void limit_calls_until(BootTime end) noexcept = 0;

    /// Takes a lease and writes this host's record with it, unless there is one: kBusy. With
    /// `record.incarnation` the host keeps that one, after the store has lost its data.
    virtual Result<HostPlace> join(const std::string& host, const HostRecord& record,
                                   Duration ttl) = 0;

    /// Goes on with the place that a daemon before had; kNotFound when it is no longer there.
    virtual Result<HostPlace> resume(const std::string& host, const HostRecord& record,
                                     std::int64_t lease) = 0;

    /// Renews the lease of join() or resume(). kNotFound: it is gone.
    virtual Result<StoreLease> keep() = 0;

    /// What is new; waits for `wait` at most when nothing is. After an error the next answer is
    /// whole.
    virtual Result<StoreNews> news(Duration wait) = 0;

    /// All that there is, read from the store and not from what was heard of it.
    virtual Result<StoreNews> read_all() = 0;

    /// Takes the right to run the command for this incarnation, which goes with this host's lease.
    /// False: another host has it.
    virtual Result<bool> claim(const FenceKey& key) = 0;

    /// Never turns a fenced one into a lost one.
    virtual Result<void> write_fence(const FenceKey& key, const FenceRecord& record) = 0;

    /// Gives the place back: the record goes at once.
    virtual Result<void> leave() = 0;
};

}  // namespace fabricd
