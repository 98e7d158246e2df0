// Heap: blocks cut from one piece of memory that somebody else owns, such as a region of an arena.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// A best-fit heap with its administration inside the piece itself. One process's own: other
/// processes may read and write the blocks, but must not allocate. Thread-safe; O(log blocks).
///
/// The administration lies between the blocks, so who writes past the end of a block damages it, as
/// with malloc().
class Heap {
  public:
    static constexpr Bytes kAlign = kCacheLine;
    /// What a block costs on top of its bytes, at most; and what the heap itself needs, at most.
    static constexpr Bytes kBlockOverhead = 3 * kAlign;
    static constexpr Bytes kHeapOverhead = 1024;

    /// `piece` starts on a multiple of kAlign and has at least 2 * kHeapOverhead bytes. It has to
    /// outlive the heap; its contents are overwritten.
    Heap(std::byte* piece, Bytes bytes);
    ~Heap();
    Heap(const Heap&) = delete;
    Heap& operator=(const Heap&) = delete;

    /// At least `bytes`, aligned to kAlign; nullptr when there is no such hole. Zero bytes are a
    /// block too.
    std::byte* allocate(Bytes bytes) noexcept;

    /// Gives a block of this heap back.
    void release(std::byte* block) noexcept;

    /// True when `block` may be one of this heap's.
    bool holds(const std::byte* block) const noexcept;

    bool empty() const noexcept;

  private:
    struct Administration;

    std::byte* const piece_;
    const Bytes bytes_;
    mutable std::mutex mutex_;
    Administration* administration_;  // at the start of the piece
    std::size_t blocks_ = 0;
};

}  // namespace fabricshm
