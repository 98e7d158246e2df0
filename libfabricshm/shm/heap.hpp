// Heap: blocks cut from one piece of memory that something else owns, such as a region of an arena.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// A best-fit heap. The piece itself holds blocks and nothing else: what is free and what is not is
/// known to private memory of this process, so that a peer which writes past its own block, or
/// anywhere, can corrupt contents but not the heap. One process's own: other processes may read and
/// write the blocks, but must not allocate. Thread-safe; O(log holes).
///
///   piece   | block | block  | hole        | block |     units of 64 bytes
///   tags_     L3      L4       F6         F6  L2          at the first unit of a block, and at
///                                                        both ends of a hole; 0 elsewhere
///   holes_    {6 units at 7}                             by size, then by place
class Heap {
  public:
    static constexpr Bytes kAlign = kCacheLine;

    /// `piece` starts on a multiple of kAlign and has at least kAlign bytes; of one larger than
    /// kMaxBytes the rest is not used. It has to outlive the heap, which never touches it. When
    /// there is no private memory for the tags the heap has no room.
    static constexpr Bytes kMaxBytes = kAlign << 29;
    Heap(std::byte* piece, Bytes bytes);
    Heap(const Heap&) = delete;
    Heap& operator=(const Heap&) = delete;

    /// At least `bytes`, aligned to kAlign; nullptr when there is no such hole. Zero bytes are a
    /// block too.
    std::byte* allocate(Bytes bytes) noexcept;

    /// Gives a block of this heap back. False, and nothing happens, when it is none: a block that
    /// was given back already, or an address inside of one.
    bool release(std::byte* block) noexcept;

    bool empty() const noexcept;

  private:
    using Unit = std::uint32_t;
    using Tag = std::uint32_t;  // units << 2 | kLive or kFree; 0: no end of anything
    struct Free {
        void operator()(Tag* tags) const noexcept;
    };

    using Holes = std::set<std::uint64_t>;  // units << 32 | begin

    void add_hole(Unit begin, Unit units, Holes::node_type node);
    Holes::node_type take_hole(Unit begin, Unit units) noexcept;

    std::byte* const piece_;
    const Unit units_;
    mutable std::mutex mutex_;  // guards what follows
    const std::unique_ptr<Tag[], Free> tags_;
    Holes holes_;
    std::size_t blocks_ = 0;
};

}  // namespace fabricshm
