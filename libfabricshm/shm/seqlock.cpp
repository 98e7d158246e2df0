#include "libfabricshm/shm/seqlock.hpp"

#include <cstring>

namespace fabricshm {

void seqlock_begin(SharedWord& sequence) noexcept {
    // Relaxed: only this process writes it. Odd even if a writer before us died half way.
    const std::uint64_t before = sequence.load(std::memory_order_relaxed);
    sequence.store(before | 1, std::memory_order_relaxed);
}

void seqlock_store(SharedWord* words, const void* from, std::size_t count) noexcept {
    const auto* bytes = static_cast<const unsigned char*>(from);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t value = 0;
        std::memcpy(&value, bytes + 8 * i, sizeof value);
        // Release: the odd sequence is there before the word is, so a reader that loads this word
        // and then the sequence knows that a write was under way.
        words[i].store(value, std::memory_order_release);
    }
}

std::uint64_t seqlock_end(SharedWord& sequence) noexcept {
    const std::uint64_t after = sequence.load(std::memory_order_relaxed) + 1;
    // Release: all words are there before the even sequence is.
    sequence.store(after, std::memory_order_release);
    return after;
}

void seqlock_load(const SharedWord* words, void* to, std::size_t count) noexcept {
    auto* bytes = static_cast<unsigned char*>(to);
    for (std::size_t i = 0; i < count; ++i) {
        // Acquire: the check of the sequence stays behind it.
        const std::uint64_t value = words[i].load(std::memory_order_acquire);
        std::memcpy(bytes + 8 * i, &value, sizeof value);
    }
}

}  // namespace fabricshm
