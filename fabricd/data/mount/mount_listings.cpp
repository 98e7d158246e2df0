#include "fabricd/data/mount/mount_listings.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;

namespace {

// A listing may be a mapping, of which a process has some 65,000.
constexpr std::size_t kMaxKept = 16'384;

bool has_version(const MountListing& listing, const Node& file, std::size_t& index) {
    const auto found = listing.find(file.name);
    if (!found) return false;
    const auto entry = listing.entry(*found);
    index = *found;
    return entry.ok() && !entry->facts.is_folder && entry->facts.stamp == file.facts.stamp;
}

}  // namespace

Result<std::shared_ptr<const MountListing>> MountListings::read_again(NodeNumber folder,
                                                                      TimePoint deadline) {
    FABRIC_TRY(const std::string path, nodes_.path_of(folder));
    return source_.list(path, deadline);
}

Result<std::shared_ptr<const MountListing>> MountListings::of(NodeNumber folder,
                                                              TimePoint deadline) {
    FABRIC_TRY(const Node node, nodes_.find(folder));
    {
        const std::scoped_lock hold(lock_);
        const auto kept = kept_.find(node.inode);
        if (kept != kept_.end()) return kept->second.now;
    }
    // Two threads may do it at once; both are right.
    FABRIC_TRY(auto listing, read_again(folder, deadline));
    // With a stamp of before, what the kernel has may be of another listing: the watch compares.
    if (node.facts.stamp == 0) nodes_.set_listing(folder, stamp_of(*listing), 0);
    const std::scoped_lock hold(lock_);
    if (kept_.size() >= kMaxKept) kept_.erase(kept_.begin());
    return kept_.try_emplace(node.inode, Kept{listing, nullptr}).first->second.now;
}

void MountListings::replace(const Node& folder, std::shared_ptr<const MountListing> listing) {
    const std::scoped_lock hold(lock_);
    const auto kept = kept_.find(folder.inode);
    if (kept == kept_.end()) return;
    kept->second.before = std::move(kept->second.now);
    kept->second.now = std::move(listing);
}

void MountListings::forget(const Node& folder) {
    const std::scoped_lock hold(lock_);
    kept_.erase(folder.inode);
}

Result<FilePlace> MountListings::place_of(const Node& file, TimePoint deadline) {
    FilePlace place;
    FABRIC_TRY(place.listing, of(file.parent, deadline));
    if (has_version(*place.listing, file, place.index)) return place;
    FABRIC_TRY(const Node folder, nodes_.find(file.parent));
    {
        const std::scoped_lock hold(lock_);
        const auto kept = kept_.find(folder.inode);
        place.listing = kept != kept_.end() ? kept->second.before : nullptr;
    }
    if (place.listing && has_version(*place.listing, file, place.index)) return place;
    return Error{Errc::kChanged, 0, "find version"};
}

}  // namespace fabricd
