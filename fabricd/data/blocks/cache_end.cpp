#include "fabricd/data/blocks/cache_end.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

using fabricshm::DataLine;
using fabricshm::kPageBytes;
using fabricshm::round_up;

namespace {

// In one call of shrink_to(), some 20 ms: readers ask for other chunks meanwhile.
constexpr Bytes kMovedAtOnce = 64 * fabricshm::kMiB;

}  // namespace

void CacheEnd::begin_with(Bytes end) {
    FABRIC_CHECK(end >= cache_.tables_.chunks_offset && end <= cache_.end_ &&
                 cache_.by_offset_.empty());
    FABRIC_CHECK(end == cache_.end_ || cache_.memory_.take_at(end, cache_.end_ - end));
    cache_.end_ = cache_.wanted_end_ = end;
}

void CacheEnd::grow_to(Bytes end) {
    FABRIC_CHECK(end <= cache_.tables_.arena_bytes);
    for (const auto& [begin, count] : cache_.withheld_.holes_in(0, cache_.tables_.arena_bytes)) {
        FABRIC_CHECK(cache_.withheld_.take_at(begin, count));
        cache_.memory_.give(begin, count);
    }
    end = std::max(end, cache_.end_);
    cache_.memory_.give(cache_.end_, end - cache_.end_);
    cache_.end_ = cache_.wanted_end_ = end;
}

// What is free there is no place for anything from now on.
void CacheEnd::withhold(Bytes end) {
    for (const auto& [begin, count] : cache_.memory_.holes_in(end, cache_.end_)) {
        FABRIC_CHECK(cache_.memory_.take_at(begin, count));
        cache_.withheld_.give(begin, count);
    }
}

std::vector<std::uint64_t> CacheEnd::lines_behind(Bytes end) const {
    std::vector<std::uint64_t> lines;
    auto chunk = cache_.by_offset_.upper_bound(end);
    if (chunk != cache_.by_offset_.begin()) --chunk;
    for (; chunk != cache_.by_offset_.end(); ++chunk) {
        const bool reaches = chunk->first + chunk_room(cache_.at(chunk->second).bytes) > end;
        if (reaches && cache_.state(chunk->second) == DataLineState::kReady)
            lines.push_back(chunk->second);
    }
    return lines;
}

Bytes CacheEnd::shrink_to(Bytes end) {
    end = std::max(round_up(end, kPageBytes), cache_.tables_.chunks_offset);
    // What an earlier call withheld in front of it, for less than that.
    grow_to(cache_.end_);
    if (end >= cache_.end_) return cache_.end_;
    cache_.wanted_end_ = end;
    withhold(end);
    cache_.sweep();
    auto lines = lines_behind(end);
    Bytes behind = 0;
    for (const auto line : lines) behind += chunk_room(cache_.at(line).bytes);
    // First what would go next anyway, so that what is read has places to move to.
    if (behind > cache_.memory_.free()) {
        const Bytes bytes = behind - cache_.memory_.free();
        cache_.evict(cache_.order_.next(bytes, bytes));
        lines = lines_behind(end);
    }
    // From the end, which is what can be given back; the rest with the next call.
    Bytes moved = 0;
    const auto enough = std::find_if(lines.rbegin(), lines.rend(), [&](auto line) {
        moved += chunk_room(cache_.at(line).bytes);
        return moved > kMovedAtOnce;
    });
    lines.erase(lines.begin(), enough.base());
    for (const auto line : lines) cache_.set_word(line, DataLineState::kLeaving, false);
    for (const auto line : cache_.without_pinned(lines)) cache_.move_or_evict(line);
    for (const auto line : lines) {
        if (cache_.state(line) == DataLineState::kLeaving)
            cache_.set_word(line, DataLineState::kReady, false);
    }
    // The last bytes that are free without a gap, in whole pages.
    const auto holes = cache_.withheld_.holes_in(end, cache_.end_);
    if (holes.empty() || holes.back().first + holes.back().second != cache_.end_)
        return cache_.end_;
    const Bytes from = round_up(holes.back().first, kPageBytes);
    if (from >= cache_.end_) return cache_.end_;
    FABRIC_CHECK(cache_.withheld_.take_at(from, cache_.end_ - from));
    cache_.end_ = from;
    check_unused(from);
    return cache_.end_;
}

// By the table itself, which is what readers see: no line that is ready, is filled or may be
// pinned has a byte there. begin() and finish() check the other half.
void CacheEnd::check_unused(Bytes end) const {
    for (std::uint64_t line = 0; line < cache_.tables_.lines; ++line) {
        const DataLine& one = cache_.at(line);
        FABRIC_CHECK(one.bytes == 0 || one.offset + one.bytes <= end);
    }
    for (const auto& [offset, bytes] : cache_.unsettled_) FABRIC_CHECK(offset + bytes <= end);
}

}  // namespace fabricd
