// AllreducePlan: into which blocks an allreduce over several hosts goes, and what each rank
// exchanges of them. Pure, as HostsPlan: operations run by it, and the simulator counts by it.

#pragma once

#include <vector>

#include "libfabricshm/net/hosts_plan.hpp"

namespace fabricshm::net {

struct AllreducePlan {
    /// Each host reduces to its leader, and these send each other all bytes. One block.
    bool is_small = false;
    /// Hosts reduce stripes and send the results back, instead of all bytes to all.
    bool has_two_steps = false;
    /// Stripes go around along the hosts instead, a block at a time.
    bool is_ring = false;
    std::uint64_t blocks = 1;
    Bytes each = 0;  // bytes of a block but the last
    Bytes last = 0;

    Bytes bytes_of(std::uint64_t block) const noexcept { return block + 1 == blocks ? last : each; }
};

/// `bytes` of more than one host; `largest_part` is what a rank stages of a block at most.
AllreducePlan plan_allreduce(const HostsPlan& plan, Bytes bytes, Bytes largest_part);

/// What a rank stages of a block at most, and sends at once: all its rings have so much room for
/// each block.
Bytes largest_message(const HostsPlan& plan);

/// What `rank` exchanges of a block; offsets are the block's. Of its own host there is nothing.
struct BlockExchange {
    std::vector<Segment> own;                // that it adds up
    std::vector<std::vector<Segment>> sent;  // [host]: that this host adds up
    std::vector<std::vector<Segment>> come;  // [host]: that it gives to `own`
};
BlockExchange exchange_of(const HostsPlan& plan, int rank, Bytes block, bool has_two_steps);

}  // namespace fabricshm::net
