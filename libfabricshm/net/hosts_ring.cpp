// Allreduce of large buffers over many hosts, along a ring.
//
// Block by block (hosts_plan.hpp): the ranks of a host reduce the block, each its part. The stripe
// that host r reduces begins at the host behind r as that one's partial sum; each host adds its own
// and hands it on, and r, the last, has the sum. In a second round the sums go along the ring in
// the same way. In step t host h sends what it got in step t - 1, and with H hosts there are H - 1
// steps a round. Then the ranks of a host give each other their parts.
//
// One host adds up each stripe's last sum, so all ranks have the same bits. The order is that of
// the ring, and another one for each stripe; numbers of 16 and 8 bits are rounded at each host.
//
// No ring overflows: a host is ahead of the next one by a round at most, since it waits for the one
// before it, and so on around; of a block that is one part a round, for which there are four slots.

#include <vector>

#include "kernels/copy.hpp"
#include "libfabricshm/net/allreduce_plan.hpp"
#include "libfabricshm/net/hosts_group.hpp"

namespace fabricshm::net {

namespace {

class RingAllreduce {
  public:
    RingAllreduce(HostsGroup& group, const HostsGroup::Step& step);
    Result<void> run(const AllreducePlan& sizes);

  private:
    Result<void> run_block(std::uint64_t number, Bytes at, Bytes bytes);
    Result<void> send(Bytes bytes, int reducer);
    // Adds what comes to the own sum; `last`: it is the result. `adds` false: takes its place.
    Result<void> receive(Bytes bytes, int reducer, bool adds, bool last);
    int around(int host) const noexcept {
        return (host % plan_.hosts() + plan_.hosts()) % plan_.hosts();
    }

    HostsGroup& group_;
    const HostsGroup::Step& step_;
    const HostsPlan& plan_;
    const int host_;
    Call sums_call_;  // of sums on the way: no average
    HostsGroup::Step sums_;
    std::uint64_t number_ = 0;
    std::byte* partial_ = nullptr;  // the own part, seen from the block's beginning
};

RingAllreduce::RingAllreduce(HostsGroup& group, const HostsGroup::Step& step)
    : group_(group),
      step_(step),
      plan_(group.plan()),
      host_(group.own_host()),
      sums_call_(step.call),
      sums_{sums_call_, step.mark, step.element, step.partial} {
    sums_call_.op = step.partial;
}

Result<void> RingAllreduce::send(Bytes bytes, int reducer) {
    for (const Segment& segment :
         plan_.crossings(group_.rank(), around(host_ + 1), bytes, around(reducer))) {
        FABRIC_TRY_VOID(group_.send(step_, segment.peer, partial_ + segment.offset, segment.bytes,
                                    group_.pending(number_)));
    }
    return {};
}

Result<void> RingAllreduce::receive(Bytes bytes, int reducer, bool adds, bool last) {
    for (const Segment& segment :
         plan_.crossings(group_.rank(), around(host_ - 1), bytes, around(reducer))) {
        FABRIC_TRY(const std::byte* theirs, group_.receive(step_, segment.peer, segment.bytes));
        std::byte* own = partial_ + segment.offset;
        if (adds) {
            sum_up(last ? step_ : sums_, group_.world(), {{theirs, own}, own, segment.bytes});
        } else {
            kernels::copy(own, theirs, segment.bytes, false);
        }
        group_.links()->release(segment.peer);
    }
    return {};
}

Result<void> RingAllreduce::run_block(std::uint64_t number, Bytes at, Bytes bytes) {
    const Bytes part = plan_.part_bytes(group_.rank(), bytes);
    std::vector<Bytes> parts;
    for (const int rank : plan_.ranks_of(host_)) parts.push_back(plan_.part_bytes(rank, bytes));
    number_ = number;
    partial_ = group_.slot(number) - plan_.part_begin(host_, group_.own_local(), bytes);
    FABRIC_TRY_VOID(group_.links()->settle(group_.pending(number), step_.deadline));
    FABRIC_TRY_VOID(group_.run_local(step_, {.kind = Kind::kReduceScatter,
                                             .input = step_.call.input + at,
                                             .output = group_.slot(number),
                                             .bytes = part,
                                             .counts = parts}));
    const int steps = plan_.hosts() - 1;
    for (int turn = 0; turn < steps; ++turn) {
        FABRIC_TRY_VOID(send(bytes, host_ - 1 - turn));
        FABRIC_TRY_VOID(receive(bytes, host_ - 2 - turn, true, turn + 1 == steps));
    }
    // What was sent as a partial sum is about to become the whole one.
    FABRIC_TRY_VOID(group_.links()->settle(group_.pending(number), step_.deadline));
    for (int turn = 0; turn < steps; ++turn) {
        FABRIC_TRY_VOID(send(bytes, host_ - turn));
        FABRIC_TRY_VOID(receive(bytes, host_ - 1 - turn, false, false));
    }
    return group_.run_local(step_, {.kind = Kind::kAllGather,
                                    .input = group_.slot(number),
                                    .output = step_.call.output + at,
                                    .bytes = part,
                                    .counts = parts});
}

Result<void> RingAllreduce::run(const AllreducePlan& sizes) {
    for (std::uint64_t number = 0; number < sizes.blocks; ++number) {
        FABRIC_TRY_VOID(run_block(number, number * sizes.each, sizes.bytes_of(number)));
    }
    return {};
}

}  // namespace

Result<void> run_hosts_ring(HostsGroup& group, const HostsGroup::Step& step,
                            const AllreducePlan& sizes) {
    return RingAllreduce(group, step).run(sizes);
}

}  // namespace fabricshm::net
