// The survivors of a group over several hosts make a new one, over the connections of the old one.
//
// In each pool the daemon finds the survivors. Their first rank, the speaker, sends their numbers
// to all ranks of the other hosts, and waits for the same of each host that is not known to be
// dead. The speakers compare what they know; then everything goes as when a group is joined, on
// endpoints and with keys of the new epoch: the exchange between the ranks goes through the
// speakers.
//
// A host that says nothing and is not known to be dead may be alive behind a cut. Then the side
// with more hosts goes on; of two equal ones, that with the first host.

#include <algorithm>
#include <cstring>
#include <optional>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

using Text = std::vector<std::byte>;

enum Round : int { kSurvivors, kView, kFirstExchange };

// How often a rank that waits for another asks whether its connection is still there.
constexpr Duration kProbeEvery = std::chrono::milliseconds(50);
// How long two speakers that know of different survivors wait for the other to learn more.
constexpr Duration kDisagreement = std::chrono::seconds(1);

template <typename T>
Text text_of(const std::vector<T>& values) {
    Text text(values.size() * sizeof(T));
    std::memcpy(text.data(), values.data(), text.size());
    return text;
}

std::vector<int> ranks_in(const Text& text) {
    std::vector<int> ranks(text.size() / sizeof(int));
    std::memcpy(ranks.data(), text.data(), ranks.size() * sizeof(int));
    return ranks;
}

class Shrink {
  public:
    Shrink(HostsGroup& old, Group& local, TimePoint deadline)
        : old_(old), links_(*old.links()), local_(local), deadline_(deadline) {}

    /// The members of the new group, by their old ranks.
    Result<std::vector<int>> agree();
    /// All-gather between the members, through the speakers.
    bool exchange(const void* mine, std::size_t bytes, void* all);
    /// Why it failed.
    const std::optional<Error>& failure() const noexcept { return failure_; }

  private:
    bool speaks() const noexcept { return local_.rank() == 0; }
    Result<void> run(Kind kind, const void* input, void* output, Bytes bytes);
    Result<void> find_members(const std::vector<int>& own);
    Result<void> collect(const std::vector<int>& own);
    Result<void> check_majority() const;
    Result<void> compare();
    Result<Text> next_text(int peer, int round);

    HostsGroup& old_;
    Links& links_;
    Group& local_;
    const TimePoint deadline_;
    std::vector<std::vector<int>> by_host_;  // members on each old host; empty: it is gone
    std::vector<int> members_;
    int round_ = kFirstExchange;
    std::optional<Error> failure_;
};

Result<void> Shrink::run(Kind kind, const void* input, void* output, Bytes bytes) {
    Call call;
    call.kind = kind;
    call.dtype = kernels::DType::kU8;
    call.input = static_cast<const std::byte*>(input);
    call.output = static_cast<std::byte*>(output);
    call.count = bytes;
    call.deadline = deadline_;
    return local_.run(call);
}

// Waits for the text of a speaker that is known.
Result<Text> Shrink::next_text(int peer, int round) {
    TimePoint probed{};
    for (TimePoint now = Clock::now(); now < deadline_; now = Clock::now()) {
        if (auto text = links_.control_of(peer, round)) return *text;
        if (links_.lost(peer)) return Error{Errc::kPeer, peer, "shrink"};
        if (now - probed < kProbeEvery) continue;
        probed = now;
        links_.probe(peer);
    }
    return Error{Errc::kTimeout, peer, "shrink"};
}

// Which ranks of the other hosts are left. A host is waited for until all its ranks are lost, or
// until half of the time is over: the rest is for those that came.
Result<void> Shrink::collect(const std::vector<int>& own) {
    const HostsPlan& plan = old_.plan();
    by_host_.assign(static_cast<std::size_t>(plan.hosts()), {});
    by_host_[static_cast<std::size_t>(old_.own_host())] = own;
    const TimePoint until = Clock::now() + (deadline_ - Clock::now()) / 2;
    for (int rank = 0; rank < plan.world(); ++rank) {
        if (!plan.remote(rank, old_.rank()) || links_.lost(rank)) continue;
        // One that does not take it is found out below.
        (void)links_.send_control(rank, kSurvivors, text_of(own),
                                  std::min(until, Clock::now() + std::chrono::seconds(1)));
    }
    FAULT_POINT("hosts.shrink.sent");
    for (int host = 0; host < plan.hosts(); ++host) {
        auto& found = by_host_[static_cast<std::size_t>(host)];
        TimePoint probed{};
        while (found.empty() && Clock::now() < until) {
            bool reachable = false;
            for (const int rank : plan.ranks_of(host)) {
                // One that has died since speaks for no host, whatever it said before.
                if (links_.lost(rank)) continue;
                reachable = true;
                if (const auto text = links_.control_of(rank, kSurvivors)) {
                    found = ranks_in(*text);
                    break;
                }
            }
            if (!reachable) break;
            if (Clock::now() - probed < kProbeEvery) continue;
            probed = Clock::now();
            for (const int rank : plan.ranks_of(host)) links_.probe(rank);
        }
        for (const int rank : found) {
            if (rank < 0 || rank >= plan.world() || plan.host_of(rank) != host) {
                return Error{Errc::kCorrupt, host, "shrink"};
            }
        }
    }
    return {};
}

Result<void> Shrink::check_majority() const {
    const HostsPlan& plan = old_.plan();
    int alive = 0;
    int silent = -1;
    for (int host = 0; host < plan.hosts(); ++host) {
        if (!by_host_[static_cast<std::size_t>(host)].empty()) {
            ++alive;
            continue;
        }
        const auto& ranks = plan.ranks_of(host);
        const bool dead = std::ranges::all_of(ranks, [&](int rank) { return links_.dead(rank); });
        if (!dead) silent = host;
    }
    const bool larger = 2 * alive > plan.hosts();
    const bool first_half = 2 * alive == plan.hosts() && !by_host_.front().empty();
    if (silent < 0 || larger || first_half) return {};
    const int rank = plan.leader_of(silent);
    return explain({Errc::kPeer, rank, "shrink"},
                   "host %s with rank %d does not answer and is not known to be dead, and the "
                   "hosts that are left are not the larger part",
                   old_.host_name(rank).c_str(), rank);
}

// Speakers that know of different hosts would make groups that wait for each other.
Result<void> Shrink::compare() {
    for (const auto& ranks : by_host_) {
        if (ranks.empty() || ranks.front() == old_.rank()) continue;
        FABRIC_TRY_VOID(links_.send_control(ranks.front(), kView, text_of(members_), deadline_));
    }
    for (const auto& ranks : by_host_) {
        if (ranks.empty() || ranks.front() == old_.rank()) continue;
        // What is there may be from an attempt before this one, or from before a death.
        const TimePoint until = std::min(deadline_, Clock::now() + kDisagreement);
        while (true) {
            FABRIC_TRY(const Text theirs, next_text(ranks.front(), kView));
            if (theirs == text_of(members_)) break;
            links_.probe(ranks.front());
            if (links_.lost(ranks.front())) return Error{Errc::kPeer, ranks.front(), "shrink"};
            if (Clock::now() < until) continue;
            return explain({Errc::kBroken, 0, "shrink"},
                           "ranks %d and %d do not know of the same survivors", old_.rank(),
                           ranks.front());
        }
    }
    return {};
}

Result<void> Shrink::find_members(const std::vector<int>& own) {
    FABRIC_TRY_VOID(collect(own));
    FABRIC_TRY_VOID(check_majority());
    for (const auto& ranks : by_host_) members_.insert(members_.end(), ranks.begin(), ranks.end());
    std::ranges::sort(members_);
    FAULT_POINT("hosts.shrink.collected");
    return compare();
}

Result<std::vector<int>> Shrink::agree() {
    const int self = old_.rank();
    std::vector<int> own(static_cast<std::size_t>(local_.world()));
    FABRIC_TRY_VOID(run(Kind::kAllGather, &self, own.data(), sizeof self));
    // The others of this host get what the speaker found, or why it did not.
    std::int32_t found[2] = {0, 0};
    Result<void> result;
    if (speaks()) {
        result = find_members(own);
        found[0] = static_cast<std::int32_t>(result.error().code);
        found[1] = static_cast<std::int32_t>(members_.size());
    }
    FABRIC_TRY_VOID(run(Kind::kBroadcast, found, found, sizeof found));
    if (!result.ok()) return result.error();
    if (found[0] != 0) return Error{static_cast<Errc>(found[0]), -1, "shrink"};
    members_.resize(static_cast<std::size_t>(found[1]));
    FABRIC_TRY_VOID(
        run(Kind::kBroadcast, members_.data(), members_.data(), members_.size() * sizeof(int)));
    // The dead and the unreachable: what they have sent and was late must not land.
    for (int rank = 0; rank < old_.world(); ++rank) {
        const bool left = std::ranges::binary_search(members_, rank);
        if (!left && old_.plan().remote(rank, self)) links_.fence(rank);
    }
    FAULT_POINT("hosts.shrink.agreed");
    return members_;
}

bool Shrink::exchange(const void* mine, std::size_t bytes, void* all) {
    Text host(bytes * static_cast<std::size_t>(local_.world()));
    const auto note = [this](const Error& error) {
        if (!failure_) failure_ = error;
        return false;
    };
    if (const auto done = run(Kind::kAllGather, mine, host.data(), bytes); !done.ok()) {
        return note(done.error());
    }
    Text whole(bytes * members_.size());
    std::uint8_t well = 1;
    for (const auto& ranks : by_host_) {
        if (!speaks() || ranks.empty() || ranks.front() == old_.rank()) continue;
        const auto sent = links_.send_control(ranks.front(), round_, host, deadline_);
        if (!sent.ok()) well = note(sent.error());
    }
    for (const auto& ranks : by_host_) {
        if (!speaks() || ranks.empty() || well == 0) continue;
        const bool own = ranks.front() == old_.rank();
        const auto theirs = own ? Result<Text>(host) : next_text(ranks.front(), round_);
        if (!theirs.ok() || theirs->size() != bytes * ranks.size()) {
            well = note(theirs.ok() ? Error{Errc::kBroken, 0, "shrink"} : theirs.error());
            break;
        }
        for (std::size_t i = 0; i < ranks.size(); ++i) {
            const auto at = std::ranges::lower_bound(members_, ranks[i]) - members_.begin();
            std::memcpy(&whole[static_cast<std::size_t>(at) * bytes], &(*theirs)[i * bytes], bytes);
        }
    }
    ++round_;
    FAULT_POINT("hosts.shrink.exchanged");
    if (const auto done = run(Kind::kBroadcast, &well, &well, 1); !done.ok()) {
        return note(done.error());
    }
    if (well == 0) return note({Errc::kBroken, 0, "shrink"});
    const auto done = run(Kind::kBroadcast, whole.data(), whole.data(), whole.size());
    if (!done.ok()) return note(done.error());
    std::memcpy(all, whole.data(), whole.size());
    return true;
}

}  // namespace

Result<std::unique_ptr<HostsGroup>> HostsGroup::shrink(HostsSpec spec, TimePoint deadline) {
    retire();
    links_->begin();
    auto joined = spec.join(0, 0, deadline);
    if (!joined.ok()) {
        links_->end();
        return joined.error();
    }
    std::unique_ptr<Group> local = std::move(joined).value();
    FAULT_POINT("hosts.shrink.joined");
    const std::uint64_t id = local->id();
    const int place = local->rank();
    Shrink steps(*this, *local, deadline);
    const auto members = steps.agree();
    Result<std::unique_ptr<HostsGroup>> made =
        members.ok() ? Error{Errc::kBroken, 0, "shrink"} : members.error();
    if (members.ok()) {
        const auto self = std::ranges::lower_bound(*members, rank()) - members->begin();
        spec.rank = static_cast<int>(self);
        spec.world = static_cast<int>(members->size());
        spec.host = spec_.host;
        spec.pool = spec_.pool;
        spec.trusted = spec_.trusted;
        spec.exchange = [&steps](const void* mine, std::size_t bytes, void* all) {
            return steps.exchange(mine, bytes, all);
        };
        spec.join = [&local](int, int, TimePoint) -> Result<std::unique_ptr<Group>> {
            return std::move(local);
        };
        made = join(std::move(spec), deadline);
        if (!made.ok() && steps.failure()) made = *steps.failure();
    }
    if (local != nullptr) {
        local.reset();
        spec_.leave(id, place);
    }
    links_->end();
    return made;
}

}  // namespace fabricshm::net
