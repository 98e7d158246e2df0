// Barrier, broadcast, all_gather, reduce and reduce_scatter over several hosts. What a rank gives
// to a host crosses the network once; there it goes on in the pool.

#include <algorithm>

#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

// Up to so many bytes the root sends to all hosts itself: fewer hops. Above it each host hands on
// to the next, and no host sends more than once.
constexpr Bytes kStar = 64 * kKiB;

// The rank of `host` that receives what `from`, of another host, gives to it.
int receiver_on(const HostsPlan& plan, int host, int from) noexcept {
    const auto& ranks = plan.ranks_of(host);
    return ranks[static_cast<std::size_t>(plan.local_of(from)) % ranks.size()];
}

// A broadcast's block on its way: which rank gives it to this one, and which ones get it from here.
struct Route {
    int from = -1;
    std::vector<int> to;
    int root = 0;  // on this host
};

Route route_of(const HostsGroup& group, int root, Bytes bytes) {
    const HostsPlan& plan = group.plan();
    const int hosts = plan.hosts();
    const int root_host = plan.host_of(root);
    const int own = group.own_host();
    const int place = (own - root_host + hosts) % hosts;  // in the chain
    const auto speaker = [&](int at) {
        const int host = (root_host + at) % hosts;
        return host == root_host ? root : receiver_on(plan, host, root);
    };
    Route route;
    route.root = plan.local_of(speaker(place));
    if (group.rank() != speaker(place)) return route;
    const bool star = bytes <= kStar;
    if (place != 0) route.from = speaker(star ? 0 : place - 1);
    for (int at = 1; at < hosts; ++at) {
        if (star ? place == 0 : at == place + 1) route.to.push_back(speaker(at));
    }
    return route;
}

}  // namespace

Result<void> run_hosts_barrier(HostsGroup& group, const HostsGroup::Step& step) {
    const HostsPlan& plan = group.plan();
    FABRIC_TRY_VOID(group.run_local(step, {.kind = Kind::kBarrier}));
    for (int host = 0; group.own_local() == 0 && host < plan.hosts(); ++host) {
        if (host == group.own_host()) continue;
        FABRIC_TRY_VOID(group.send_any(step, plan.leader_of(host), nullptr, 0));
    }
    for (int host = 0; group.own_local() == 0 && host < plan.hosts(); ++host) {
        if (host == group.own_host()) continue;
        FABRIC_TRY_VOID(take(group, step, plan.leader_of(host), nullptr, 0));
    }
    return group.run_local(step, {.kind = Kind::kBarrier});
}

Result<void> run_hosts_broadcast(HostsGroup& group, const HostsGroup::Step& step) {
    const Call& call = step.call;
    const Bytes bytes = call.count * step.element;
    const Route route = route_of(group, call.root, bytes);
    const Bytes most = group.slot_bytes();
    for (Bytes at = 0; at < bytes; at += most) {
        const Bytes now = std::min(most, bytes - at);
        std::byte* output = call.output + at;
        const std::byte* source = group.rank() == call.root ? call.input + at : output;
        if (route.from >= 0) FABRIC_TRY_VOID(take(group, step, route.from, output, now));
        for (const int peer : route.to) {
            FABRIC_TRY_VOID(group.send_any(step, peer, source, now));
        }
        FABRIC_TRY_VOID(group.run_local(step, {.kind = Kind::kBroadcast,
                                               .input = source,
                                               .output = output,
                                               .bytes = now,
                                               .root = route.root}));
    }
    return {};
}

Result<void> run_hosts_all_gather(HostsGroup& group, const HostsGroup::Step& step) {
    const Call& call = step.call;
    const HostsPlan& plan = group.plan();
    const Parts parts = parts_of(call, group.world());
    const Bytes most = group.slot_bytes();
    for (Bytes at = 0; at < parts.largest(); at += most) {
        const auto now = [&](int rank) {
            return at < parts.bytes(rank) ? std::min(most, parts.bytes(rank) - at) : 0;
        };
        const int self = group.rank();
        for (int turn = 1; now(self) != 0 && turn < plan.hosts(); ++turn) {
            const int host = (group.own_host() + turn) % plan.hosts();
            FABRIC_TRY_VOID(
                group.send_any(step, receiver_on(plan, host, self), call.input + at, now(self)));
        }
        for (int rank = 0; rank < group.world(); ++rank) {
            if (now(rank) == 0) continue;
            std::byte* to = call.output + parts.offset(rank) + at;
            const bool far = plan.remote(rank, self);
            const int speaker = far ? receiver_on(plan, group.own_host(), rank) : rank;
            const std::byte* source = rank == self ? call.input + at : to;
            if (far && speaker == self) FABRIC_TRY_VOID(take(group, step, rank, to, now(rank)));
            FABRIC_TRY_VOID(group.run_local(step, {.kind = Kind::kBroadcast,
                                                   .input = source,
                                                   .output = to,
                                                   .bytes = now(rank),
                                                   .root = plan.local_of(speaker)}));
        }
    }
    return {};
}

// Part r of the input goes to rank r; of reduce() the whole of it to the root.
Result<void> run_hosts_reduce(HostsGroup& group, const HostsGroup::Step& step) {
    const Call& call = step.call;
    const HostsPlan& plan = group.plan();
    const bool scatters = call.kind == Kind::kReduceScatter;
    const Bytes whole = call.count * step.element;
    const Parts parts = scatters ? parts_of(call, group.world()) : Parts::equal(whole, 1);
    const Bytes most = group.slot_bytes();
    const int self = group.rank();
    for (Bytes at = 0; at < parts.largest(); at += most) {
        Bytes mine = 0;
        for (int part = 0; part < (scatters ? group.world() : 1); ++part) {
            const int target = scatters ? part : call.root;
            if (at >= parts.bytes(part)) continue;
            const Bytes now = std::min(most, parts.bytes(part) - at);
            const bool far = plan.remote(target, self);
            const int speaker = far ? receiver_on(plan, group.own_host(), target) : target;
            // Slot 0 keeps what this rank adds up at the end of this turn; it is sent to no rank.
            std::byte* to = group.slot(target == self ? 0 : 1);
            if (target == self) mine = now;
            FABRIC_TRY_VOID(group.run_local(
                step, {.kind = Kind::kReduce,
                       .input = call.input + (scatters ? parts.offset(part) : 0) + at,
                       .output = speaker == self ? to : nullptr,
                       .bytes = now,
                       .root = plan.local_of(speaker)}));
            if (far && speaker == self) FABRIC_TRY_VOID(group.send_any(step, target, to, now));
        }
        if (mine == 0) continue;
        HostsSum sum;
        for (int host = 0; host < plan.hosts(); ++host) {
            if (host == group.own_host()) {
                sum.parts.push_back(group.slot(0));
                continue;
            }
            FABRIC_TRY(const std::byte* theirs,
                       group.receive(step, receiver_on(plan, host, self), mine));
            sum.parts.push_back(theirs);
        }
        sum.output = call.output + at;
        sum.bytes = mine;
        sum_up(step, group.world(), sum);
        for (int host = 0; host < plan.hosts(); ++host) {
            if (host != group.own_host()) group.links()->release(receiver_on(plan, host, self));
        }
    }
    return {};
}

}  // namespace fabricshm::net
