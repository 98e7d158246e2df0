// Gather, scatter and all_to_all over several hosts. Every part crosses the network once, straight
// between the two ranks that it concerns; what stays on a host goes through the pool.

#include <algorithm>

#include "kernels/copy.hpp"
#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

// Ranks of one host whose numbers follow each other: their parts are one piece of a buffer.
struct Run {
    int first = 0;              // a rank of the group
    std::vector<Bytes> counts;  // [local rank]: bytes of its part, 0 for ranks of other runs
};

std::vector<Run> runs_of(const HostsGroup& group, const Parts& parts) {
    const std::vector<int>& ranks = group.plan().ranks_of(group.own_host());
    std::vector<Run> runs;
    for (std::size_t local = 0; local < ranks.size(); ++local) {
        if (local == 0 || ranks[local] != ranks[local - 1] + 1) {
            runs.push_back({ranks[local], std::vector<Bytes>(ranks.size())});
        }
        runs.back().counts[local] = parts.bytes(ranks[local]);
    }
    return runs;
}

// Of a part of `bytes`: what its block from `at` on has.
Bytes block_at(const HostsGroup& group, Bytes bytes, Bytes at) noexcept {
    return at < bytes ? std::min(group.slot_bytes(), bytes - at) : 0;
}

template <typename Work>
Result<void> for_each_remote(const HostsGroup& group, const Work& work) {
    for (int turn = 1; turn < group.plan().hosts(); ++turn) {
        // Each host begins with another one.
        const int host = (group.own_host() + turn) % group.plan().hosts();
        for (const int rank : group.plan().ranks_of(host)) FABRIC_TRY_VOID(work(rank));
    }
    return {};
}

// Each rank that is elsewhere has to say the same of what this one sends to it: else a part would
// be looked for where another one is.
Result<void> compare_counts(HostsGroup& group, const HostsGroup::Step& step, const Parts& sent,
                            const Parts& wanted) {
    if (sent.bytes(group.rank()) != wanted.bytes(group.rank())) {
        return Error{Errc::kMismatch, group.rank(), "all_to_all: recv_counts"};
    }
    FABRIC_TRY_VOID(for_each_remote(group, [&](int rank) -> Result<void> {
        const std::uint64_t bytes = sent.bytes(rank);
        return group.send_any(step, rank, reinterpret_cast<const std::byte*>(&bytes), sizeof bytes);
    }));
    return for_each_remote(group, [&](int rank) -> Result<void> {
        std::uint64_t bytes = 0;
        FABRIC_TRY_VOID(
            take(group, step, rank, reinterpret_cast<std::byte*>(&bytes), sizeof bytes));
        if (bytes == wanted.bytes(rank)) return {};
        return Error{Errc::kMismatch, rank, "all_to_all: recv_counts"};
    });
}

// Between the ranks of this host. Where their parts are not one piece, they are packed.
Result<void> exchange_locally(HostsGroup& group, const HostsGroup::Step& step, const Parts& sent,
                              const Parts& wanted) {
    const Call& call = step.call;
    const std::vector<int>& ranks = group.plan().ranks_of(group.own_host());
    HostsGroup::LocalCall local{.kind = Kind::kAllToAll, .bytes = sent.bytes(group.rank())};
    Bytes in = 0;
    Bytes out = 0;
    for (const int rank : ranks) {
        in += sent.bytes(rank);
        out += wanted.bytes(rank);
        if (!call.has_own_counts()) continue;
        local.counts.push_back(sent.bytes(rank));
        local.recv_counts.push_back(wanted.bytes(rank));
    }
    const bool one_piece = runs_of(group, sent).size() == 1;
    if (one_piece) {
        local.input = call.input + sent.offset(ranks.front());
        local.output = call.output + wanted.offset(ranks.front());
        return group.run_local(step, local);
    }
    std::vector<std::byte> packed(in);
    std::vector<std::byte> came(out);
    Bytes at = 0;
    for (const int rank : ranks) {
        const Bytes bytes = sent.bytes(rank);
        if (bytes != 0) {
            kernels::copy(&packed[at], call.input + sent.offset(rank), bytes, false);
        }
        at += bytes;
    }
    local.input = packed.data();
    local.output = came.data();
    FABRIC_TRY_VOID(group.run_local(step, local));
    at = 0;
    for (const int rank : ranks) {
        const Bytes bytes = wanted.bytes(rank);
        if (bytes != 0) {
            kernels::copy(call.output + wanted.offset(rank), &came[at], bytes, false);
        }
        at += bytes;
    }
    return {};
}

}  // namespace

Result<void> run_hosts_gather(HostsGroup& group, const HostsGroup::Step& step) {
    const Call& call = step.call;
    const HostsPlan& plan = group.plan();
    const Parts parts = parts_of(call, group.world());
    const int self = group.rank();
    if (plan.remote(self, call.root)) {
        const Bytes all = parts.bytes(self);
        for (Bytes at = 0; at < all; at += group.slot_bytes()) {
            FABRIC_TRY_VOID(
                group.send_any(step, call.root, call.input + at, block_at(group, all, at)));
        }
        return {};
    }
    for (Run& run : runs_of(group, parts)) {
        std::byte* to = self == call.root ? call.output + parts.offset(run.first) : nullptr;
        const Bytes own = run.counts[static_cast<std::size_t>(group.own_local())];
        FABRIC_TRY_VOID(group.run_local(step, {.kind = Kind::kGather,
                                               .input = call.input,
                                               .output = to,
                                               .bytes = own,
                                               .counts = std::move(run.counts),
                                               .root = plan.local_of(call.root)}));
    }
    for (Bytes at = 0; self == call.root && at < parts.largest(); at += group.slot_bytes()) {
        FABRIC_TRY_VOID(for_each_remote(group, [&](int rank) -> Result<void> {
            const Bytes now = block_at(group, parts.bytes(rank), at);
            if (now == 0) return {};
            return take(group, step, rank, call.output + parts.offset(rank) + at, now);
        }));
    }
    return {};
}

Result<void> run_hosts_scatter(HostsGroup& group, const HostsGroup::Step& step) {
    const Call& call = step.call;
    const HostsPlan& plan = group.plan();
    const Parts parts = parts_of(call, group.world());
    const int self = group.rank();
    if (plan.remote(self, call.root)) {
        const Bytes all = parts.bytes(self);
        for (Bytes at = 0; at < all; at += group.slot_bytes()) {
            FABRIC_TRY_VOID(
                take(group, step, call.root, call.output + at, block_at(group, all, at)));
        }
        return {};
    }
    for (Bytes at = 0; self == call.root && at < parts.largest(); at += group.slot_bytes()) {
        FABRIC_TRY_VOID(for_each_remote(group, [&](int rank) -> Result<void> {
            const Bytes now = block_at(group, parts.bytes(rank), at);
            if (now == 0) return {};
            return group.send_any(step, rank, call.input + parts.offset(rank) + at, now);
        }));
    }
    for (Run& run : runs_of(group, parts)) {
        const std::byte* from = self == call.root ? call.input + parts.offset(run.first) : nullptr;
        const Bytes own = run.counts[static_cast<std::size_t>(group.own_local())];
        FABRIC_TRY_VOID(group.run_local(step, {.kind = Kind::kScatter,
                                               .input = from,
                                               .output = call.output,
                                               .bytes = own,
                                               .counts = std::move(run.counts),
                                               .root = plan.local_of(call.root)}));
    }
    return {};
}

// In place a block is sent, and copied by that, before the one that takes its place is received.
// A rank sends its next blocks when it has all of these, so a ring has at most two of them.
Result<void> run_hosts_all_to_all(HostsGroup& group, const HostsGroup::Step& step) {
    const Call& call = step.call;
    const Parts sent = parts_of(call, group.world());
    const Parts wanted =
        call.recv_counts.empty() ? sent : Parts::of(call.recv_counts, step.element);
    if (call.has_own_counts()) FABRIC_TRY_VOID(compare_counts(group, step, sent, wanted));
    FABRIC_TRY_VOID(exchange_locally(group, step, sent, wanted));
    const Bytes most = std::max(sent.largest(), wanted.largest());
    for (Bytes at = 0; at < most; at += group.slot_bytes()) {
        FABRIC_TRY_VOID(for_each_remote(group, [&](int rank) -> Result<void> {
            const Bytes now = block_at(group, sent.bytes(rank), at);
            if (now == 0) return {};
            return group.send_any(step, rank, call.input + sent.offset(rank) + at, now);
        }));
        FABRIC_TRY_VOID(for_each_remote(group, [&](int rank) -> Result<void> {
            const Bytes now = block_at(group, wanted.bytes(rank), at);
            if (now == 0) return {};
            return take(group, step, rank, call.output + wanted.offset(rank) + at, now);
        }));
    }
    return {};
}

}  // namespace fabricshm::net
