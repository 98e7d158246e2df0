// Allreduce over several hosts.
//
// Small buffers: each host reduces to its leader, the leaders give each other their sums, each adds
// up all of them in the order of hosts, and gives the result to its host.
//
// Large ones go block by block (hosts_plan.hpp). Three stages, each of another block, so that the
// network is busy while a host adds up: SCATTER reduces block b in the pool, each rank its part,
// and sends what other hosts reduce. REDUCE takes what came of block b - 1, adds it up, and with
// more than two hosts sends the result back. GATHER takes the results of block b - 2 and gives the
// parts to all ranks of the host.
//
// No wait is for a peer that waits for this rank: when a rank sends of block b it has taken all
// that belongs to block b - 3, so at most four blocks are on their way to any rank, for which its
// rings have room (one message of slot_bytes() per block and peer at most, two of half of it in two
// steps).

#include <algorithm>
#include <vector>

#include "kernels/copy.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/net/allreduce_plan.hpp"
#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

Result<void> allreduce_small(HostsGroup& group, const HostsGroup::Step& step, Bytes bytes) {
    const Call& call = step.call;
    const HostsPlan& plan = group.plan();
    std::byte* own = group.slot(0);
    if (group.own_local() == 0)
        FABRIC_TRY_VOID(group.links()->settle(group.pending(0), step.deadline));
    FABRIC_TRY_VOID(group.run_local(
        step, {.kind = Kind::kReduce, .input = call.input, .output = own, .bytes = bytes}));
    if (group.own_local() == 0) {
        for (int host = 0; host < plan.hosts(); ++host) {
            if (host == group.own_host()) continue;
            FABRIC_TRY_VOID(group.send(step, plan.leader_of(host), own, bytes, group.pending(0)));
        }
        HostsSum sum;
        for (int host = 0; host < plan.hosts(); ++host) {
            if (host == group.own_host()) {
                sum.parts.push_back(own);
                continue;
            }
            FABRIC_TRY(const std::byte* theirs, group.receive(step, plan.leader_of(host), bytes));
            sum.parts.push_back(theirs);
        }
        sum.output = call.output;
        sum.bytes = bytes;
        sum_up(step, group.world(), sum);
        for (int host = 0; host < plan.hosts(); ++host) {
            if (host != group.own_host()) group.links()->release(plan.leader_of(host));
        }
    }
    return group.run_local(
        step,
        {.kind = Kind::kBroadcast, .input = call.output, .output = call.output, .bytes = bytes});
}

class LargeAllreduce {
  public:
    LargeAllreduce(HostsGroup& group, const HostsGroup::Step& step, const AllreducePlan& sizes);
    Result<void> run();

  private:
    // What this rank exchanges of a block of `bytes`.
    struct Block {
        Bytes bytes = 0;
        Bytes begin = 0;  // of this rank's part
        Bytes part = 0;
        BlockExchange with;
        std::vector<Bytes> parts;  // of this host's ranks
    };

    Block block_of(Bytes bytes) const;
    const Block& block(std::uint64_t number) const noexcept {
        return number + 1 == sizes_.blocks ? last_ : each_;
    }
    std::byte* output(std::uint64_t number) const noexcept {
        return step_.call.output + number * each_.bytes;
    }
    // Of the own part, seen from the block's beginning.
    const std::byte* partial(std::uint64_t number) const noexcept;
    Result<void> scatter(std::uint64_t number);
    Result<void> reduce(std::uint64_t number);
    Result<void> add_up(std::uint64_t number, const Block& block);
    Result<void> gather(std::uint64_t number);

    HostsGroup& group_;
    const HostsGroup::Step& step_;
    const HostsPlan& plan_;
    const AllreducePlan sizes_;
    const bool in_place_;  // the input is the partial sum: one rank on this host
    Block each_;
    Block last_;
};

LargeAllreduce::LargeAllreduce(HostsGroup& group, const HostsGroup::Step& step,
                               const AllreducePlan& sizes)
    : group_(group),
      step_(step),
      plan_(group.plan()),
      sizes_(sizes),
      in_place_(group.local().world() == 1 && !group.links()->transport().needs_lent()),
      each_(block_of(sizes.each)),
      last_(block_of(sizes.last)) {}

LargeAllreduce::Block LargeAllreduce::block_of(Bytes bytes) const {
    Block block;
    block.bytes = bytes;
    const int own = group_.own_host();
    block.begin = plan_.part_begin(own, group_.own_local(), bytes);
    block.part = plan_.part_bytes(group_.rank(), bytes);
    for (const int rank : plan_.ranks_of(own)) block.parts.push_back(plan_.part_bytes(rank, bytes));
    block.with = exchange_of(plan_, group_.rank(), bytes, sizes_.has_two_steps);
    return block;
}

const std::byte* LargeAllreduce::partial(std::uint64_t number) const noexcept {
    if (in_place_) return step_.call.input + number * each_.bytes;
    return group_.slot(number) - block(number).begin;
}

Result<void> LargeAllreduce::scatter(std::uint64_t number) {
    const Block& now = block(number);
    if (!in_place_) {
        FABRIC_TRY_VOID(group_.links()->settle(group_.pending(number), step_.deadline));
        FABRIC_TRY_VOID(group_.run_local(step_, {.kind = Kind::kReduceScatter,
                                                 .input = step_.call.input + number * each_.bytes,
                                                 .output = group_.slot(number),
                                                 .bytes = now.part,
                                                 .counts = now.parts}));
    }
    for (int turn = 1; turn < plan_.hosts(); ++turn) {
        // Each host begins with another one.
        const int host = (group_.own_host() + turn) % plan_.hosts();
        for (const Segment& segment : now.with.sent[static_cast<std::size_t>(host)]) {
            FABRIC_TRY_VOID(group_.send(step_, segment.peer, partial(number) + segment.offset,
                                        segment.bytes, group_.pending(number)));
        }
    }
    return {};
}

// Along the own segments: of each other host there is one message at a time, and what all have in
// common is one job.
Result<void> LargeAllreduce::add_up(std::uint64_t number, const Block& now) {
    struct Current {
        const Segment* segment = nullptr;
        std::size_t next = 0;
        const std::byte* bytes = nullptr;
    };
    std::vector<Current> current(static_cast<std::size_t>(plan_.hosts()));
    HostsSum sum;
    for (const Segment& own : now.with.own) {
        for (Bytes at = own.offset; at < own.offset + own.bytes;) {
            Bytes end = own.offset + own.bytes;
            sum.parts.clear();
            for (int host = 0; host < plan_.hosts(); ++host) {
                if (host == group_.own_host()) {
                    sum.parts.push_back(partial(number) + at);
                    continue;
                }
                Current& its = current[static_cast<std::size_t>(host)];
                if (its.segment == nullptr) {
                    its.segment = &now.with.come[static_cast<std::size_t>(host)][its.next++];
                    FABRIC_TRY(its.bytes,
                               group_.receive(step_, its.segment->peer, its.segment->bytes));
                }
                FABRIC_DCHECK(at >= its.segment->offset);
                sum.parts.push_back(its.bytes + (at - its.segment->offset));
                end = std::min(end, its.segment->offset + its.segment->bytes);
            }
            sum.output = output(number) + at;
            sum.bytes = end - at;
            sum_up(step_, group_.world(), sum);
            at = end;
            for (Current& its : current) {
                if (its.segment == nullptr || at < its.segment->offset + its.segment->bytes) {
                    continue;
                }
                group_.links()->release(its.segment->peer);
                its.segment = nullptr;
            }
        }
    }
    return {};
}

Result<void> LargeAllreduce::reduce(std::uint64_t number) {
    const Block& now = block(number);
    // The output may be the input that is still being sent.
    if (in_place_) FABRIC_TRY_VOID(group_.links()->settle(group_.pending(number), step_.deadline));
    FABRIC_TRY_VOID(add_up(number, now));
    if (!sizes_.has_two_steps) return {};
    // Straight from the output, unless the network needs memory that was lent to it.
    const bool sends_any = !group_.links()->transport().needs_lent();
    for (int turn = 1; turn < plan_.hosts(); ++turn) {
        const int host = (group_.own_host() + turn) % plan_.hosts();
        for (const Segment& segment : now.with.come[static_cast<std::size_t>(host)]) {
            const std::byte* from = output(number) + segment.offset;
            FABRIC_TRY_VOID(sends_any ? group_.send(step_, segment.peer, from, segment.bytes,
                                                    group_.pending(number))
                                      : group_.send_any(step_, segment.peer, from, segment.bytes));
        }
    }
    return {};
}

Result<void> LargeAllreduce::gather(std::uint64_t number) {
    const Block& now = block(number);
    for (int host = 0; sizes_.has_two_steps && host < plan_.hosts(); ++host) {
        for (const Segment& segment : now.with.sent[static_cast<std::size_t>(host)]) {
            FABRIC_TRY(const std::byte* theirs, group_.receive(step_, segment.peer, segment.bytes));
            kernels::copy(output(number) + segment.offset, theirs, segment.bytes, false);
            group_.links()->release(segment.peer);
        }
    }
    if (group_.local().world() == 1) return {};
    return group_.run_local(step_, {.kind = Kind::kAllGather,
                                    .input = output(number) + now.begin,
                                    .output = output(number),
                                    .bytes = now.part,
                                    .counts = now.parts});
}

Result<void> LargeAllreduce::run() {
    const std::uint64_t behind =
        sizes_.has_two_steps ? 2 : 1;  // blocks by which GATHER is behind SCATTER
    for (std::uint64_t turn = 0; turn < sizes_.blocks + behind; ++turn) {
        if (turn < sizes_.blocks) FABRIC_TRY_VOID(scatter(turn));
        FAULT_POINT("hosts.scattered");
        if (turn >= 1 && turn - 1 < sizes_.blocks) FABRIC_TRY_VOID(reduce(turn - 1));
        FAULT_POINT("hosts.reduced");
        if (turn >= behind) FABRIC_TRY_VOID(gather(turn - behind));
    }
    // The caller's buffers are the caller's again.
    for (std::uint64_t slot = 0; slot < HostsGroup::kSlots; ++slot) {
        FABRIC_TRY_VOID(group_.links()->settle(group_.pending(slot), step_.deadline));
    }
    return {};
}

}  // namespace

Result<void> run_hosts_allreduce(HostsGroup& group, const HostsGroup::Step& step) {
    const Bytes bytes = step.call.count * step.element;
    const AllreducePlan sizes = plan_allreduce(group.plan(), bytes, group.slot_bytes());
    if (sizes.is_small) return allreduce_small(group, step, bytes);
    if (sizes.is_ring) return run_hosts_ring(group, step, sizes);
    return LargeAllreduce(group, step, sizes).run();
}

}  // namespace fabricshm::net
