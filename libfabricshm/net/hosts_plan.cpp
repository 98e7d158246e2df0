#include "libfabricshm/net/hosts_plan.hpp"

#include <algorithm>

namespace fabricshm::net {

HostsPlan::HostsPlan(std::span<const std::uint64_t> pools, int ring_from) : ring_from_(ring_from) {
    std::vector<std::uint64_t> known;
    for (const std::uint64_t pool : pools) {
        const auto found = std::ranges::find(known, pool);
        const auto host = static_cast<std::size_t>(found - known.begin());
        if (found == known.end()) {
            known.push_back(pool);
            ranks_.emplace_back();
        }
        local_of_.push_back(static_cast<int>(ranks_[host].size()));
        ranks_[host].push_back(static_cast<int>(host_of_.size()));
        host_of_.push_back(static_cast<int>(host));
    }
}

bool HostsPlan::even() const noexcept {
    return std::ranges::all_of(
        ranks_, [this](const auto& ranks) { return ranks.size() == ranks_.front().size(); });
}

int HostsPlan::smallest_host() const noexcept {
    std::size_t least = ranks_.front().size();
    for (const auto& ranks : ranks_) least = std::min(least, ranks.size());
    return static_cast<int>(least);
}

Bytes HostsPlan::part_begin(int host, int local, Bytes bytes) const noexcept {
    const Bytes units = (bytes + kPartUnit - 1) / kPartUnit;
    const auto count = static_cast<Bytes>(ranks_[index(host)].size());
    return std::min(bytes, units * static_cast<Bytes>(local) / count * kPartUnit);
}

Bytes HostsPlan::part_bytes(int rank, Bytes bytes) const noexcept {
    const int host = host_of(rank);
    const int local = local_of(rank);
    return part_begin(host, local + 1, bytes) - part_begin(host, local, bytes);
}

// So long that the smallest part has about one for each host.
Bytes HostsPlan::stripe(Bytes bytes) const noexcept {
    std::size_t most = 1;
    for (const auto& ranks : ranks_) most = std::max(most, ranks.size());
    const Bytes each = bytes / static_cast<Bytes>(most) / static_cast<Bytes>(hosts());
    return std::max(round_up(each, kPartUnit), kPartUnit);
}

std::vector<Segment> HostsPlan::crossings(int rank, int host, Bytes bytes, int reducer) const {
    const int own = host_of(rank);
    const Bytes begin = part_begin(own, local_of(rank), bytes);
    const Bytes end = part_begin(own, local_of(rank) + 1, bytes);
    const Bytes width = stripe(bytes);
    const auto all = static_cast<Bytes>(hosts());
    std::vector<Segment> found;
    for (int local = 0; local < static_cast<int>(ranks_of(host).size()); ++local) {
        Bytes from = std::max(begin, part_begin(host, local, bytes));
        const Bytes to = std::min(end, part_begin(host, local + 1, bytes));
        const int peer = ranks_of(host)[index(local)];
        while (from < to) {
            const Bytes next = reducer < 0 ? to : std::min(to, (from / width + 1) * width);
            if (reducer < 0 || static_cast<int>(from / width % all) == reducer) {
                found.push_back({peer, from, next - from});
            }
            from = next;
        }
    }
    return found;
}

}  // namespace fabricshm::net
