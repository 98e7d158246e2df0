#include "libfabricshm/shm/heap.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

namespace {

constexpr std::uint32_t kLive = 1;
constexpr std::uint32_t kFree = 2;
constexpr std::uint32_t kKind = 3;

constexpr std::uint32_t tag_of(std::uint32_t units, std::uint32_t kind) {
    return units << 2 | kind;
}

constexpr std::uint64_t key_of(std::uint32_t begin, std::uint32_t units) {
    return std::uint64_t{units} << 32 | begin;
}

// From calloc(), which leaves large blocks untouched: a page of tags costs memory only once blocks
// begin or end in its 64 KiB of the piece.
std::uint32_t* make_tags(std::uint32_t units) {
    return static_cast<std::uint32_t*>(std::calloc(units, sizeof(std::uint32_t)));
}

}  // namespace

void Heap::Free::operator()(Tag* tags) const noexcept {
    std::free(tags);
}

Heap::Heap(std::byte* piece, Bytes bytes)
    : piece_(piece),
      units_(static_cast<Unit>(std::min(bytes, kMaxBytes) / kAlign)),
      tags_(make_tags(units_)) {
    static_assert((kMaxBytes / kAlign) << 2 <= std::uint64_t{1} << 31, "a tag holds any size");
    FABRIC_CHECK(reinterpret_cast<std::uintptr_t>(piece) % kAlign == 0);
    FABRIC_CHECK(units_ > 0);
    if (tags_ != nullptr) add_hole(0, units_, {});
}

std::byte* Heap::allocate(Bytes bytes) noexcept {
    if (bytes > kMaxBytes) return nullptr;
    const Unit units = std::max<Unit>(1, static_cast<Unit>((bytes + kAlign - 1) / kAlign));
    const std::lock_guard lock(mutex_);
    // The smallest hole that is large enough, of these the first.
    const auto best = holes_.lower_bound(key_of(0, units));
    if (best == holes_.end()) return nullptr;
    const auto begin = static_cast<Unit>(*best);
    const auto found = static_cast<Unit>(*best >> 32);
    auto node = take_hole(begin, found);
    if (found > units) add_hole(begin + units, found - units, std::move(node));
    tags_[begin] = tag_of(units, kLive);
    ++blocks_;
    return piece_ + Bytes{begin} * kAlign;
}

bool Heap::release(std::byte* block) noexcept {
    // Numbers and not pointers: comparing pointers of different objects says nothing.
    const auto offset =
        reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(piece_);
    if (offset % kAlign != 0 || offset / kAlign >= units_ || tags_ == nullptr) return false;
    auto begin = static_cast<Unit>(offset / kAlign);
    const std::lock_guard lock(mutex_);
    if ((tags_[begin] & kKind) != kLive) return false;
    Unit units = tags_[begin] >> 2;
    FABRIC_DCHECK(blocks_ > 0 && units > 0 && units <= units_ - begin);
    tags_[begin] = 0;
    --blocks_;

    // The holes on both sides and the block become one hole.
    Holes::node_type node;
    const Unit end = begin + units;
    if (end < units_ && (tags_[end] & kKind) == kFree) {
        const Unit after = tags_[end] >> 2;
        node = take_hole(end, after);
        units += after;
    }
    if (begin > 0 && (tags_[begin - 1] & kKind) == kFree) {
        const Unit before = tags_[begin - 1] >> 2;
        begin -= before;
        node = take_hole(begin, before);
        units += before;
    }
    add_hole(begin, units, std::move(node));
    return true;
}

bool Heap::empty() const noexcept {
    const std::lock_guard lock(mutex_);
    return blocks_ == 0;
}

// `node` is one that take_hole() returned, or empty: then one is allocated.
void Heap::add_hole(Unit begin, Unit units, Holes::node_type node) {
    FABRIC_DCHECK(units > 0 && begin < units_ && units <= units_ - begin);
    // Two holes never touch: release() joins them, and so finds a neighbour by the tag at its edge.
    FABRIC_DCHECK(begin == 0 || (tags_[begin - 1] & kKind) != kFree);
    FABRIC_DCHECK(begin + units == units_ || (tags_[begin + units] & kKind) != kFree);
    if (node) {
        node.value() = key_of(begin, units);
        holes_.insert(std::move(node));
    } else {
        holes_.insert(key_of(begin, units));
    }
    tags_[begin] = tags_[begin + units - 1] = tag_of(units, kFree);
}

Heap::Holes::node_type Heap::take_hole(Unit begin, Unit units) noexcept {
    // The set and the tags at both edges say the same of every hole.
    FABRIC_DCHECK(tags_[begin] == tag_of(units, kFree));
    FABRIC_DCHECK(tags_[begin + units - 1] == tag_of(units, kFree));
    FABRIC_DCHECK(holes_.contains(key_of(begin, units)));
    tags_[begin] = tags_[begin + units - 1] = 0;
    return holes_.extract(key_of(begin, units));
}

}  // namespace fabricshm
