// The file in which a daemon keeps its place in the cluster for the next one on this host.

#pragma once

#include <cstdint>
#include <string>

#include "fabricd/net/cluster_member.hpp"

namespace fabricd {

/// Whose place it is: in another cluster, under another name or since another boot it is none.
struct PlaceOwner {
    std::string cluster;
    std::string host;
    std::uint64_t boot = 0;
};

/// No place: there is no file, it is another owner's, or it can't be read. Any content is safe.
KeptPlace read_place(const std::string& path, const PlaceOwner& owner);

/// Replaces the file as a whole. Without a place it is removed. Fails as the disk does: the next
/// daemon then is a new incarnation, and nothing worse.
fabricshm::Result<void> write_place(const std::string& path, const PlaceOwner& owner,
                                    const KeptPlace& place);

}  // namespace fabricd
