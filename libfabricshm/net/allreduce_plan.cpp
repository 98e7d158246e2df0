#include "libfabricshm/net/allreduce_plan.hpp"

#include <algorithm>

namespace fabricshm::net {

namespace {

// Below it three local collectives and half a round trip are cheaper than parts for all ranks.
constexpr Bytes kSmall = 32 * kKiB;
// Of a rank in a block: what comes is still in its second-level cache when it is added up and given
// to the others. Larger parts took up to twice as long (docs/perf/2026-11-23-hosts.md); smaller
// ones begin more local collectives.
constexpr Bytes kPart = 64 * kKiB;
// Along a ring parts are so large, or so large that there are so many blocks: a block goes around
// before the next one begins.
constexpr Bytes kLeastRingPart = 16 * kKiB;
constexpr Bytes kRingBlocks = 4;
// Up to so many bytes each host sends all to all others: one step.
constexpr Bytes kOneStep = 128 * kKiB;

constexpr Bytes kMinMessage = 16 * kKiB;
constexpr Bytes kMaxMessage = 256 * kKiB;
constexpr Bytes kMaxRings = 128 * kMiB;  // of one rank, for all others

}  // namespace

AllreducePlan plan_allreduce(const HostsPlan& plan, Bytes bytes, Bytes largest_part) {
    if (bytes <= kSmall) return {.is_small = true, .each = bytes, .last = bytes};
    AllreducePlan made;
    made.has_two_steps = plan.hosts() > 2 && bytes > kOneStep;
    const auto least = static_cast<Bytes>(plan.smallest_host());
    made.is_ring = made.has_two_steps && plan.rings();
    // In two steps each host gets its share of a part.
    const Bytes shares = made.has_two_steps ? static_cast<Bytes>(plan.hosts()) * kMinMessage : 0;
    const Bytes wanted =
        made.is_ring ? std::max(round_up(bytes / kRingBlocks / least, kPartUnit), kLeastRingPart)
                     : std::max(kPart, shares);
    made.each = std::min(wanted, largest_part) * least;
    made.blocks = (bytes + made.each - 1) / made.each;
    made.last = bytes - (made.blocks - 1) * made.each;
    return made;
}

// Of the smallest host, so that all ranks come to the same size.
Bytes largest_message(const HostsPlan& plan) {
    const auto most = static_cast<Bytes>(plan.world() - plan.smallest_host());
    return std::clamp(kMaxRings / 4 / most / kMinMessage * kMinMessage, kMinMessage, kMaxMessage);
}

BlockExchange exchange_of(const HostsPlan& plan, int rank, Bytes block, bool has_two_steps) {
    BlockExchange exchange;
    const int own = plan.host_of(rank);
    const int reducer = has_two_steps ? own : -1;
    exchange.own = plan.crossings(rank, own, block, reducer);
    for (int host = 0; host < plan.hosts(); ++host) {
        const bool other = host != own;
        exchange.sent.push_back(other ? plan.crossings(rank, host, block, has_two_steps ? host : -1)
                                      : std::vector<Segment>());
        exchange.come.push_back(other ? plan.crossings(rank, host, block, reducer)
                                      : std::vector<Segment>());
    }
    return exchange;
}

}  // namespace fabricshm::net
