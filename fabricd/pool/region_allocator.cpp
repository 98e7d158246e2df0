#include "fabricd/pool/region_allocator.hpp"

#include <algorithm>
#include <iterator>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

RegionAllocator::RegionAllocator(Bytes bytes) : total_(bytes / kUnit * kUnit), free_(total_) {
    if (total_ != 0) add_hole(0, total_);
}

// Whole pages, so that two regions never share one: a client may ask the kernel things about its
// region (advice, a binding) that hold for pages, and a neighbour must not feel them.
Bytes RegionAllocator::rounded(Bytes bytes) noexcept {
    constexpr Bytes kMax = Bytes{1} << 62;  // far above any pool, far below an overflow
    if (bytes > kMax) return 0;
    return bytes == 0 ? kUnit : fabricshm::round_up(bytes, kUnit);
}

std::optional<std::uint64_t> RegionAllocator::allocate(Bytes bytes) {
    const Bytes wanted = rounded(bytes);
    if (wanted == 0) return std::nullopt;
    // The smallest hole that is large enough, of several the first: the same requests give the same
    // offsets in every run.
    const auto best = by_size_.lower_bound({wanted, 0});
    if (best == by_size_.end()) return std::nullopt;
    const std::uint64_t offset = best->second;
    cut(holes_.find(offset), offset, wanted);
    return offset;
}

// Offsets come from a journal here, so every one is looked at as if it were input.
bool RegionAllocator::reserve(std::uint64_t offset, Bytes bytes) {
    if (!inside(offset, bytes)) return false;
    // The one hole that could contain it begins at or before it.
    auto after = holes_.upper_bound(offset);
    if (after == holes_.begin()) return false;
    const auto hole = std::prev(after);
    if (offset + bytes > hole->first + hole->second) return false;
    cut(hole, offset, bytes);
    return true;
}

void RegionAllocator::reserve_free(std::uint64_t offset, Bytes bytes) {
    if (!inside(offset, bytes)) return;
    const std::uint64_t end = offset + bytes;
    // Piece by piece: holes and taken ranges may alternate.
    while (offset < end) {
        auto hole = holes_.upper_bound(offset);
        const bool starts_before =
            hole != holes_.begin() && std::prev(hole)->first + std::prev(hole)->second > offset;
        if (starts_before) --hole;
        if (hole == holes_.end() || hole->first >= end) return;
        const std::uint64_t from = std::max(offset, hole->first);
        const std::uint64_t to = std::min(end, hole->first + hole->second);
        cut(hole, from, to - from);
        offset = to;
    }
}

// Both neighbours are looked at before anything is changed: a piece that touches free bytes was
// given back already, and merging it would count its bytes twice.
bool RegionAllocator::release(std::uint64_t offset, Bytes bytes) {
    if (!inside(offset, bytes)) return false;
    const auto after = holes_.lower_bound(offset);
    if (after != holes_.end() && after->first < offset + bytes) return false;
    const auto before = after == holes_.begin() ? holes_.end() : std::prev(after);
    if (before != holes_.end() && before->first + before->second > offset) return false;

    std::uint64_t start = offset;
    std::uint64_t end = offset + bytes;
    if (after != holes_.end() && after->first == end) {
        end += after->second;
        remove_hole(after);
    }
    if (before != holes_.end() && before->first + before->second == start) {
        start = before->first;
        remove_hole(before);
    }
    add_hole(start, end - start);
    free_ += bytes;
    return true;
}

void RegionAllocator::extend(Bytes bytes) {
    const Bytes before = total_;
    const Bytes more = bytes / kUnit * kUnit;
    if (more <= before) return;
    total_ = more;
    release(before, more - before);
}

void RegionAllocator::truncate(Bytes bytes) {
    FABRIC_CHECK(bytes % kUnit == 0 && bytes < total_ && bytes_free_at_end() >= total_ - bytes);
    cut(std::prev(holes_.end()), bytes, total_ - bytes);
    total_ = bytes;
}

Bytes RegionAllocator::bytes_free_at_end() const noexcept {
    if (holes_.empty()) return 0;
    const auto& [offset, bytes] = *holes_.rbegin();
    return offset + bytes == total_ ? bytes : 0;
}

Bytes RegionAllocator::largest_hole() const noexcept {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

void RegionAllocator::add_hole(std::uint64_t offset, Bytes bytes) {
    holes_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
}

void RegionAllocator::remove_hole(Holes::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    holes_.erase(hole);
}

// Takes [offset, offset + bytes) out of a hole that contains it.
void RegionAllocator::cut(Holes::iterator hole, std::uint64_t offset, Bytes bytes) {
    const std::uint64_t start = hole->first;
    const std::uint64_t end = start + hole->second;
    remove_hole(hole);
    if (offset > start) add_hole(start, offset - start);
    if (offset + bytes < end) add_hole(offset + bytes, end - offset - bytes);
    free_ -= bytes;
}

// Differences and no sums, which could wrap around.
bool RegionAllocator::inside(std::uint64_t offset, Bytes bytes) const noexcept {
    const bool on_units = offset % kUnit == 0 && bytes % kUnit == 0 && bytes != 0;
    return on_units && offset <= total_ && bytes <= total_ - offset;
}

}  // namespace fabricd
