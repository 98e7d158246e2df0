// Sleeping on a word in shared memory until another process changes it.

#pragma once

#include <atomic>
#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// Sleeps while `*word` is `expected`, until a wake or the deadline (TimePoint::max(): none). False
/// when the deadline passed; true on a wake, a signal or when the word differed at once: recheck
/// the word and decide. Works between processes; the word may be in read-only memory.
bool futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected,
                TimePoint deadline) noexcept;

/// Wakes up to `count` sleepers (INT_MAX: all). Change the word first. Returns how many were woken.
int futex_wake(std::atomic<std::uint32_t>* word, int count) noexcept;

}  // namespace fabricshm
