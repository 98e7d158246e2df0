#include "fabricd/data/blocks/free_ranges.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::round_up;

FreeRanges::FreeRanges(std::uint64_t begin, std::uint64_t end) {
    if (begin < end) add(begin, end - begin);
}

void FreeRanges::add(std::uint64_t begin, std::uint64_t count) {
    holes_.emplace(begin, count);
    by_size_.emplace(count, begin);
    free_ += count;
}

void FreeRanges::remove(std::map<std::uint64_t, std::uint64_t>::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    free_ -= hole->second;
    holes_.erase(hole);
}

std::optional<std::uint64_t> FreeRanges::take(std::uint64_t count, std::uint64_t align, End end) {
    FABRIC_CHECK(count > 0 && align > 0);
    for (auto one = by_size_.lower_bound({count, 0}); one != by_size_.end(); ++one) {
        const std::uint64_t size = one->first;
        // The last of this size, for the high end.
        if (end == End::kHigh) one = std::prev(by_size_.upper_bound({size, ~std::uint64_t{0}}));
        const std::uint64_t hole = one->second;
        const std::uint64_t last = (hole + size - count) / align * align;
        const std::uint64_t first = round_up(hole, align);
        if (last < first || first + count > hole + size) continue;
        const std::uint64_t begin = end == End::kLow ? first : last;
        FABRIC_CHECK(take_at(begin, count));
        return begin;
    }
    return std::nullopt;
}

bool FreeRanges::take_at(std::uint64_t begin, std::uint64_t count) {
    auto hole = holes_.upper_bound(begin);
    if (hole == holes_.begin() || count == 0) return false;
    --hole;
    const auto [hole_begin, hole_count] = *hole;
    const std::uint64_t before = begin - hole_begin;
    if (before > hole_count || count > hole_count - before) return false;
    remove(hole);
    if (before > 0) add(hole_begin, before);
    const std::uint64_t behind = hole_count - before - count;
    if (behind > 0) add(begin + count, behind);
    return true;
}

void FreeRanges::give(std::uint64_t begin, std::uint64_t count) {
    if (count == 0) return;
    auto next = holes_.lower_bound(begin);
    FABRIC_CHECK(next == holes_.end() || begin + count <= next->first);
    if (next != holes_.end() && next->first == begin + count) {
        count += next->second;
        auto joined = next++;
        remove(joined);
    }
    if (next != holes_.begin()) {
        auto before = std::prev(next);
        FABRIC_CHECK(before->first + before->second <= begin);
        if (before->first + before->second == begin) {
            begin = before->first;
            count += before->second;
            remove(before);
        }
    }
    add(begin, count);
}

std::uint64_t FreeRanges::free_in(std::uint64_t begin, std::uint64_t end) const {
    std::uint64_t count = 0;
    for (const auto& hole : holes_in(begin, end)) count += hole.second;
    return count;
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> FreeRanges::holes_in(std::uint64_t begin,
                                                                          std::uint64_t end) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> holes;
    auto hole = holes_.upper_bound(begin);
    if (hole != holes_.begin()) --hole;
    for (; hole != holes_.end() && hole->first < end; ++hole) {
        const std::uint64_t from = std::max(begin, hole->first);
        const std::uint64_t to = std::min(end, hole->first + hole->second);
        if (from < to) holes.emplace_back(from, to - from);
    }
    return holes;
}

}  // namespace fabricd
