// MountListings: the folders that a server of the mount has read, with the versions before the last
// change, whose files may be open.

#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "fabricd/data/mount/mount_source.hpp"

namespace fabricd {

/// Where a file's bytes come from.
struct FilePlace {
    std::shared_ptr<const MountListing> listing;
    std::size_t index = 0;
};

/// Thread-safe.
class MountListings {
  public:
    MountListings(MountSource& source, NodeTable& nodes) : source_(source), nodes_(nodes) {}

    /// The folder's, read when it was not before.
    Result<std::shared_ptr<const MountListing>> of(NodeNumber folder, TimePoint deadline);
    /// Reads the folder again.
    Result<std::shared_ptr<const MountListing>> read_again(NodeNumber folder, TimePoint deadline);
    /// What of() gives from now on.
    void replace(const Node& folder, std::shared_ptr<const MountListing> listing);
    void forget(const Node& folder);

    /// The version that `file` names. kChanged: it is in no listing.
    Result<FilePlace> place_of(const Node& file, TimePoint deadline);

  private:
    struct Kept {
        std::shared_ptr<const MountListing> now;
        std::shared_ptr<const MountListing> before;
    };

    MountSource& source_;
    NodeTable& nodes_;
    std::mutex lock_;
    // By the folder's inode, that is by its path: a number may be another folder's later.
    std::map<std::uint64_t, Kept> kept_;
};

}  // namespace fabricd
