// Seqlock: plain words that one process writes and others copy, without waiting for each other.
//
//   sequence  odd while the writer is at work, two higher after each write
//
// The orders below make a copy that was not torn provable without fences, which the thread
// sanitizer does not understand. On x86 all of them are plain loads and stores.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fabricshm {

using SharedWord = std::atomic<std::uint64_t>;
static_assert(sizeof(SharedWord) == 8 && SharedWord::is_always_lock_free);

/// How often a reader tries. A write takes some 100 ns, so an honest writer is done long before; a
/// hostile one that writes for ever must not keep its reader.
inline constexpr int kSeqlockTries = 16;

/// Begins a write. One writer at a time: the caller sees to it.
void seqlock_begin(SharedWord& sequence) noexcept;

/// Stores `count` words from `from`, between begin and end.
void seqlock_store(SharedWord* words, const void* from, std::size_t count) noexcept;

/// Ends the write and shows it. The new sequence.
std::uint64_t seqlock_end(SharedWord& sequence) noexcept;

/// The sequence to compare with after the words were loaded; odd: a write is under way.
inline std::uint64_t seqlock_peek(const SharedWord& sequence) noexcept {
    // Acquire: a reader that sees the sequence of a finished write sees the words that it stored.
    return sequence.load(std::memory_order_acquire);
}

/// Copies `count` words to `to`, between peek and check.
void seqlock_load(const SharedWord* words, void* to, std::size_t count) noexcept;

/// True when nothing was written since `peeked`, so that what was loaded belongs together.
inline bool seqlock_check(const SharedWord& sequence, std::uint64_t peeked) noexcept {
    // Relaxed: the loads of the words were acquires, so this one cannot move before them; and if
    // one of them got a word of a newer write, this one sees the odd number stored before it.
    return peeked % 2 == 0 && sequence.load(std::memory_order_relaxed) == peeked;
}

enum class PageRead {
    kFresh,      // copied
    kUnchanged,  // nothing was written since
    kTorn,       // the writer was never done, or wrote nonsense: the image is as before
};

/// Calls `load`, which copies the words, until they belong together; bounded. kFresh: they are
/// those of the write `sequence_read`. kUnchanged when that was `seen` already; kTorn when no try
/// was whole.
template <typename Load>
PageRead seqlock_read(const SharedWord& sequence, std::uint64_t seen, std::uint64_t& sequence_read,
                      const Load& load) noexcept {
    for (int i = 0; i < kSeqlockTries; ++i) {
        sequence_read = seqlock_peek(sequence);
        if (sequence_read == seen) return PageRead::kUnchanged;
        load();
        if (seqlock_check(sequence, sequence_read)) return PageRead::kFresh;
    }
    return PageRead::kTorn;
}

}  // namespace fabricshm
