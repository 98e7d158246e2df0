// Stage: memory of the arena in which messages to one peer wait until they are read, used as a
// ring.

#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Positions only rise: [tail, head) is in flight, what is before the tail is free. The positions
/// outlast the memory, which may go to another peer's stage once nothing is in flight. Used under
/// the mailbox's lock.
class Stage {
  public:
    /// Pieces do not wrap, so twice the size of what is sent without waiting (Mailbox::kEager)
    /// would hold what is promised; with more, large messages flow.
    static constexpr Bytes kBytes = 256 * kKiB;

    std::byte* memory() const noexcept { return memory_; }
    void set_memory(std::byte* memory) noexcept { memory_ = memory; }
    /// Nothing may be in flight.
    std::byte* take_memory() noexcept {
        FABRIC_DCHECK(is_empty());
        return std::exchange(memory_, nullptr);
    }

    /// How far it was ever filled.
    Bytes head() const noexcept { return head_; }
    bool is_empty() const noexcept { return head_ == tail_; }

    /// `bytes` in one piece; nullptr while what is in flight leaves no room.
    std::byte* reserve(Bytes bytes) noexcept {
        // Whole lines: on hosts that share no caches a line has one writer, and one message.
        const Bytes wanted = round_up(bytes, kCacheLine);
        // An empty stage is used from its start, which is in the cache.
        if (is_empty()) head_ = tail_ = round_up(head_, kBytes);
        const Bytes left = kBytes - head_ % kBytes;
        const Bytes from = wanted <= left ? head_ : head_ + left;
        if (from + wanted - tail_ > kBytes) return nullptr;
        head_ = from + wanted;
        // The line that is published names the piece as it is: whole, and over nothing in flight.
        FABRIC_DCHECK(from % kBytes + wanted <= kBytes && tail_ <= from);
        return memory_ + from % kBytes;
    }

    /// All up to `position`, which was the head once, has been read.
    void release_until(Bytes position) noexcept {
        tail_ = std::max(tail_, position);
        FABRIC_DCHECK(tail_ <= head_);
    }

  private:
    std::byte* memory_ = nullptr;
    Bytes head_ = 0;
    Bytes tail_ = 0;
};

}  // namespace fabricshm
