// HostsGroup: the ranks of a group that are in several pools, as one of them sees it. In each pool
// there is a Group; between the pools there are Links.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/net/hosts_plan.hpp"
#include "libfabricshm/net/links.hpp"

namespace fabricshm {
class Worker;
}

namespace fabricshm::net {

class HostsMessages;
struct AllreducePlan;

/// Of one group and epoch, in all of the cluster.
using GroupId = std::array<std::uint8_t, 16>;

/// What a member brings along.
struct HostsSpec {
    int rank = 0;
    int world = 1;
    std::string host;               // for people
    std::uint64_t pool = 0;         // the same for ranks of one pool, and for no others
    std::string trusted;            // networks that may be used; "": $FABRIC_NET_TRUSTED
    std::string place;              // the host's name in its cluster; "": in none
    std::uint64_t incarnation = 0;  // of that place

    /// Gathers `bytes` bytes of each rank into `all`, in rank order; false when it failed. Called
    /// twice, by all ranks.
    std::function<bool(const void* mine, std::size_t bytes, void* all)> exchange;
    /// Joins the group of the ranks in this pool.
    std::function<Result<std::unique_ptr<Group>>(int rank, int world, TimePoint deadline)> join;
    /// Gives the place in it back when the rest fails.
    std::function<void(std::uint64_t group_id, int rank)> leave;
    /// Why no group over several hosts may be made now, if so; may wait. Empty: it may.
    std::function<Result<void>(TimePoint deadline)> admit;
    /// Whether that incarnation of a host is gone, as its cluster says. Asked in waits, every 10 ms
    /// at most; empty: never. Must not block for long.
    std::function<bool(const std::string& place, std::uint64_t incarnation)> is_gone;
    /// Whether this rank's own host still has the place that `place` and `incarnation` say; why
    /// not, if so. Empty: it has none that others could give up.
    std::function<Result<void>(TimePoint deadline)> holds_place;
    /// Has the cluster write down that these ranks of the group go on without the others, once for
    /// all of it: kPeer when others do already. Empty: nothing can.
    std::function<Result<void>(const GroupId& group, const std::vector<int>& ranks,
                               TimePoint deadline)>
        settle;
    bool coherent = true;  // the memory of this pool
    int ring_from = 0;     // of HostsPlan, rank 0's counts; 0: $FABRIC_NET_RING, else kNoRing
    /// Memory in the arena, as of GroupPlace.
    std::function<std::byte*(Bytes)> allocate;
    std::function<void(std::byte*)> release;
};

/// Runs one operation at a time, as Group does. Threads: as Group.
class HostsGroup {
  public:
    /// Waits until all members are there and connected. kDenied: no network is allowed. A group in
    /// one pool needs none: then links() is nullptr, and take_local() has all of it.
    static Result<std::unique_ptr<HostsGroup>> join(HostsSpec spec, TimePoint deadline);
    ~HostsGroup();
    HostsGroup(const HostsGroup&) = delete;
    HostsGroup& operator=(const HostsGroup&) = delete;

    int rank() const noexcept { return spec_.rank; }
    int world() const noexcept { return plan_.world(); }
    const HostsPlan& plan() const noexcept { return plan_; }
    Group& local() noexcept { return *local_; }
    std::unique_ptr<Group> take_local() noexcept { return std::move(local_); }
    Links* links() noexcept { return links_.get(); }
    const std::string& host_name(int rank) const noexcept {
        return names_[static_cast<std::size_t>(rank)];
    }

    Result<void> run(const Call& call);
    Result<std::shared_ptr<Request>> start(Call call);

    /// The group of the members that are left, once all of them call this; `spec` has join() for
    /// the survivors of this pool. May be repeated when it failed. kPeer: hosts are out of reach
    /// that are not known to be dead, and this side is not the larger one.
    Result<std::unique_ptr<HostsGroup>> shrink(HostsSpec spec, TimePoint deadline);

    /// `host` is dead, as something outside knows: nothing that its ranks write lands from now on,
    /// and what waits for them ends with kPeer. Thread-safe.
    void on_host_lost(int host) noexcept;

    /// See Group::give_up().
    void give_up() noexcept;

    /// Ends every operation of this rank, and breaks the group for all.
    void retire() noexcept;

    // For the steps of its operations (hosts_*.cpp).

    /// A collective of the ranks in this pool; `root` is a rank among them. `counts`: bytes of each
    /// part, or empty: all parts have `bytes`.
    struct LocalCall {
        Kind kind = Kind::kBarrier;
        const std::byte* input = nullptr;
        std::byte* output = nullptr;
        Bytes bytes = 0;
        std::vector<Bytes> counts = {};
        std::vector<Bytes> recv_counts = {};
        int root = 0;
    };
    struct Step {
        const Call& call;
        std::uint32_t mark = 0;
        Bytes element = 1;
        /// Of sums on the way: an average is divided once, at the end.
        kernels::ReduceOp partial = kernels::ReduceOp::kSum;
        TimePoint deadline =
            TimePoint::max();  // of waits for the network: the call's, or before it
    };
    Result<void> run_local(const Step& step, const LocalCall& local);
    Result<void> send(const Step& step, int peer, const std::byte* from, Bytes bytes,
                      std::atomic<int>& pending);
    /// The same of bytes that a network may have no access to.
    Result<void> send_any(const Step& step, int peer, const std::byte* from, Bytes bytes);
    Result<const std::byte*> receive(const Step& step, int peer, Bytes bytes);

    static constexpr int kSlots = 4;
    Bytes slot_bytes() const noexcept { return slot_bytes_; }
    std::byte* slot(std::uint64_t number) const noexcept {
        return work_ + slot_bytes_ * (number % kSlots);
    }
    std::atomic<int>& pending(std::uint64_t number) noexcept { return pending_[number % kSlots]; }
    int own_host() const noexcept { return plan_.host_of(rank()); }
    int own_local() const noexcept { return plan_.local_of(rank()); }

  private:
    explicit HostsGroup(HostsSpec spec);
    Result<void> introduce();
    Result<void> open(TimePoint deadline);
    Result<void> open_links(TimePoint deadline);
    Result<void> dispatch(const Call& call);
    Result<void> run_now(const Call& call);
    Error ended(const Error& error);
    /// `is_check`: what Group::check() said, which is of any rank of the pool.
    Error of_local(const Error& error, bool is_check = false) const noexcept;
    Error named(const Error& error) const noexcept;

    HostsSpec spec_;
    HostsPlan plan_;
    struct Place {
        std::string name;
        std::uint64_t incarnation = 0;
    };
    std::vector<std::string> names_;  // [rank]: of its host
    GroupId id_{};
    std::vector<Place> places_;  // [rank]: of its host in its cluster
    std::unique_ptr<Group> local_;
    std::byte* work_ = nullptr;  // in the arena: kSlots, and as many for send_any()
    Bytes slot_bytes_ = 0;
    std::array<std::atomic<int>, 2 * kSlots> pending_{};
    std::uint64_t staged_ = 0;      // slots that send_any() has used
    std::uint64_t operations_ = 0;  // the same on all ranks
    // on_host_lost() of all hosts that are gone, as the cluster says.
    std::function<void()> give_up_lost_;
    std::uint32_t shrinks_ = 0;  // that were tried
    std::atomic<bool> failed_{false};
    std::atomic<bool> given_up_{false};  // messages are refused then, too
    std::mutex asking_;                  // of spec_.is_gone
    std::unique_ptr<HostsMessages> messages_;
    std::unique_ptr<Links> links_;  // after what its writes point to
    std::unique_ptr<Worker> worker_;
};

/// When a rank gives up a wait for the network, some time before `deadline`: it knows which rank it
/// waited for, and those of its pool that wait for it hear of it before their own time is over.
TimePoint ahead_of(TimePoint deadline) noexcept;

/// What the hosts have, added up in their order; of an average, divided by the number of ranks.
struct HostsSum {
    std::vector<const std::byte*> parts;  // [host]
    std::byte* output = nullptr;
    Bytes bytes = 0;
};
void sum_up(const HostsGroup::Step& step, int world, const HostsSum& what) noexcept;

/// HostsGroup::receive(), copied to `to`.
Result<void> take(HostsGroup& group, const HostsGroup::Step& step, int peer, std::byte* to,
                  Bytes bytes);

/// The operations over several hosts. Each is called by all ranks with checked calls.
Result<void> run_hosts_allreduce(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_ring(HostsGroup& group, const HostsGroup::Step& step,
                            const AllreducePlan& sizes);
Result<void> run_hosts_barrier(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_broadcast(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_all_gather(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_reduce(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_gather(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_scatter(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_all_to_all(HostsGroup& group, const HostsGroup::Step& step);
Result<void> run_hosts_scan(HostsGroup& group, const HostsGroup::Step& step);

}  // namespace fabricshm::net
