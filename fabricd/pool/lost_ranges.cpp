#include "fabricd/pool/lost_ranges.hpp"

#include <algorithm>
#include <iterator>

namespace fabricd {

void LostRanges::add(std::uint64_t offset, Bytes bytes) {
    std::uint64_t begin = offset;
    std::uint64_t end = offset + bytes;
    auto at = ranges_.upper_bound(begin);
    // The one before may reach into the new range, or end right at it.
    if (at != ranges_.begin() && std::prev(at)->first + std::prev(at)->second >= begin) --at;
    // Everything that overlaps or touches is swallowed.
    while (at != ranges_.end() && at->first <= end) {
        begin = std::min(begin, at->first);
        end = std::max(end, at->first + at->second);
        at = ranges_.erase(at);
    }
    ranges_.emplace(begin, end - begin);
}

bool LostRanges::touches(std::uint64_t offset, Bytes bytes) const {
    // Of no bytes there is no intact piece either.
    if (bytes == 0) return false;
    const auto whole = intact(offset, bytes);
    return whole.size() != 1 || whole.front() != Range{offset, bytes};
}

// Walks over the lost ranges from left to right; what lies between them is intact.
std::vector<LostRanges::Range> LostRanges::intact(std::uint64_t offset, Bytes bytes) const {
    std::vector<Range> found;
    const std::uint64_t end = offset + bytes;
    std::uint64_t from = offset;
    auto at = ranges_.upper_bound(offset);
    if (at != ranges_.begin()) --at;
    for (; at != ranges_.end() && at->first < end && from < end; ++at) {
        if (at->first > from) found.emplace_back(from, at->first - from);
        from = std::max(from, at->first + at->second);
    }
    if (from < end) found.emplace_back(from, end - from);
    return found;
}

std::vector<LostRanges::Range> LostRanges::outside(const std::vector<Range>& pieces) const {
    LostRanges owned;
    for (const auto& [offset, bytes] : pieces) owned.add(offset, bytes);
    std::vector<Range> found;
    for (const auto& [offset, bytes] : ranges_) {
        for (const auto& part : owned.intact(offset, bytes)) found.push_back(part);
    }
    return found;
}

}  // namespace fabricd
