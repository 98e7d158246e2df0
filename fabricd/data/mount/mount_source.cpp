#include "fabricd/data/mount/mount_source.hpp"

#include <algorithm>

namespace fabricd {

namespace {

// Positive as an off_t.
std::uint64_t cookie_of(const std::string& name) {
    return kFirstCookie + (mix_hash(0x66616272, name) >> 2);
}

}  // namespace

const std::vector<WalkStep>& MountListing::walk() const {
    std::call_once(walk_sorted_, [this] {
        for (std::size_t index = 0; index < count(); ++index) {
            const auto found = entry(index);
            if (found.ok()) walk_.push_back({cookie_of(found->name), index});
        }
        std::sort(walk_.begin(), walk_.end(), [](const WalkStep& one, const WalkStep& other) {
            return one.cookie < other.cookie;
        });
        // Two names of one cookie: the walk goes on in front of both, and has the first one twice
        // rather than the second one never.
        for (std::size_t i = 0; i + 1 < walk_.size(); ++i) {
            if (walk_[i].cookie == walk_[i + 1].cookie) walk_[i].cookie -= 1;
        }
    });
    return walk_;
}

std::uint64_t stamp_of(const MountListing& listing) {
    std::uint64_t stamp = mix_hash(0, listing.count());
    for (std::size_t index = 0; index < listing.count(); ++index) {
        const auto entry = listing.entry(index);
        if (!entry.ok()) continue;
        stamp = mix_hash(mix_hash(stamp, entry->name), entry->facts.stamp);
        stamp = mix_hash(stamp, std::uint64_t{entry->facts.is_folder});
    }
    return std::max<std::uint64_t>(stamp, 1);
}

}  // namespace fabricd
