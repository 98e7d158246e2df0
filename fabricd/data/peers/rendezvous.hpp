// Which hosts keep the copies of a chunk: by rendezvous hashing (highest random weight), which
// needs no agreement but the list of members.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fabricd/data/silo/chunk_name.hpp"

namespace fabricd {

struct PeerMember {
    std::string address;  // "host:port"
    std::string pool;     // hosts of one pool have one memory, and count as one; "": its own

    bool operator==(const PeerMember&) const = default;
};

/// The members that keep `chunk`, best first, by their places in `members`: `copies` of them, or as
/// many as there are pools. Of each pool it is one member. A member that comes or goes moves only
/// those chunks that it gets or had.
std::vector<std::size_t> owners_of(const ChunkName& chunk, std::span<const PeerMember> members,
                                   unsigned copies);

}  // namespace fabricd
