#include "fabricd/pool/cached_ranges.hpp"

#include <algorithm>
#include <iterator>

namespace fabricd {

void CachedRanges::add(std::uint64_t offset, Bytes bytes) {
    if (bytes == 0) return;
    std::uint64_t begin = offset;
    std::uint64_t end = offset + bytes;
    auto at = ranges_.upper_bound(begin);
    // The one before may reach into the new range, or end right at it.
    if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges_.end() && at->first <= end) {
        begin = std::min(begin, at->first);
        end = std::max(end, at->second);
        at = ranges_.erase(at);
    }
    ranges_.emplace(begin, end);
}

bool CachedRanges::touches(std::uint64_t offset, Bytes bytes) const {
    // The last one that begins before the end of the range is the only one to ask.
    const auto after = ranges_.lower_bound(offset + bytes);
    return bytes != 0 && after != ranges_.begin() && std::prev(after)->second > offset;
}

bool CachedRanges::take(std::uint64_t offset, Bytes bytes) {
    if (!touches(offset, bytes)) return false;
    const std::uint64_t end = offset + bytes;
    auto at = ranges_.upper_bound(offset);
    if (at != ranges_.begin() && std::prev(at)->second > offset) --at;
    while (at != ranges_.end() && at->first < end) {
        const auto [from, to] = *at;
        at = ranges_.erase(at);
        if (from < offset) ranges_.emplace(from, offset);
        if (to > end) ranges_.emplace(end, to);
    }
    return true;
}

}  // namespace fabricd
