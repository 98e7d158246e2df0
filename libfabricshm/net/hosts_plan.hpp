// HostsPlan: which ranks of a group are on which host, and which bytes of a collective they
// exchange over the network. Pure: it is made of the members' identities alone, the same on all
// ranks.
//
// A large buffer goes in blocks. On each host a block is cut into as many parts as the host has
// ranks; a part is reduced on its host by its owner. Hosts may have different numbers of ranks, so
// that the owner of a byte on another host follows from its offset. Two hosts, and small blocks,
// exchange whole parts (one step). More hosts divide the bytes among themselves in stripes: each
// reduces its stripes and gives the result to the others (two steps). On request the hosts hand the
// stripes on along a ring, so that a rank writes to the next host alone.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/base/world_max.hpp"

namespace fabricshm::net {

/// Bytes [offset, offset + bytes) of a block, which `peer`, a rank of another host, has too.
struct Segment {
    int peer = 0;
    Bytes offset = 0;
    Bytes bytes = 0;

    bool operator==(const Segment&) const = default;
};

/// Where parts begin: a multiple of every element's size.
inline constexpr Bytes kPartUnit = 64;

/// No number of hosts from which large sums go along a ring: each owner writes to all others, in
/// fewer steps, and as many messages and bytes.
inline constexpr int kNoRing = kWorldMax + 1;

class HostsPlan {
  public:
    HostsPlan() = default;
    /// `pools[rank]` is any number that ranks of one pool, and only they, have in common. Hosts are
    /// numbered in the order of their first ranks.
    explicit HostsPlan(std::span<const std::uint64_t> pools, int ring_from = kNoRing);

    int world() const noexcept { return static_cast<int>(host_of_.size()); }
    int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
    int host_of(int rank) const noexcept { return host_of_[index(rank)]; }
    /// Its number among the ranks of its host.
    int local_of(int rank) const noexcept { return local_of_[index(rank)]; }
    const std::vector<int>& ranks_of(int host) const noexcept { return ranks_[index(host)]; }
    bool remote(int a, int b) const noexcept { return host_of(a) != host_of(b); }
    /// Every host has as many ranks as the others.
    bool even() const noexcept;
    int smallest_host() const noexcept;
    bool rings() const noexcept { return hosts() >= ring_from_ && hosts() > 2; }

    /// The rank that speaks for a host.
    int leader_of(int host) const noexcept { return ranks_[index(host)].front(); }

    /// Of a block of `bytes`: where the part of `local` on `host` begins. `local` may be the number
    /// of ranks there: the end.
    Bytes part_begin(int host, int local, Bytes bytes) const noexcept;
    Bytes part_bytes(int rank, Bytes bytes) const noexcept;

    /// What `rank`'s part of a block has in common with the parts of `host`, in the order of
    /// offsets. With `reducer` >= 0: only of the stripes that this host reduces.
    std::vector<Segment> crossings(int rank, int host, Bytes bytes, int reducer = -1) const;

  private:
    static std::size_t index(int number) noexcept { return static_cast<std::size_t>(number); }
    Bytes stripe(Bytes bytes) const noexcept;

    int ring_from_ = kNoRing;
    std::vector<int> host_of_;             // [rank]
    std::vector<int> local_of_;            // [rank]
    std::vector<std::vector<int>> ranks_;  // [host], in rising order
};

}  // namespace fabricshm::net
