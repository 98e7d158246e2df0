#include "emu/hosts/host_cache.hpp"

#include <algorithm>

// The emulated hardware moves lines while ranks store into them, which real caches may do too. The
// thread sanitizer would call that a race of the ranks; it is the point of the exercise.
#define FABRIC_UNWATCHED __attribute__((noinline, no_sanitize_thread))

namespace emu {

namespace {

using fabricshm::kCacheLine;
constexpr Bytes kWord = 8;
constexpr int kWords = kCacheLine / kWord;

// One line as its three holders see it.
struct Line {
    std::uint64_t* pool;
    std::uint64_t* cache;
    std::uint64_t* known;
};

Line line_at(std::byte* pool, std::byte* cache, std::byte* known, Bytes offset) noexcept {
    return {reinterpret_cast<std::uint64_t*>(pool + offset),
            reinterpret_cast<std::uint64_t*>(cache + offset),
            reinterpret_cast<std::uint64_t*>(known + offset)};
}

// Relaxed everywhere: the lock of the line orders what matters, and a word is never torn.
FABRIC_UNWATCHED std::uint64_t load(const std::uint64_t* word) noexcept {
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

FABRIC_UNWATCHED void store(std::uint64_t* word, std::uint64_t value) noexcept {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

FABRIC_UNWATCHED bool is_dirty(const Line& line) noexcept {
    for (int i = 0; i < kWords; ++i) {
        if (load(line.cache + i) != load(line.known + i)) return true;
    }
    return false;
}

FABRIC_UNWATCHED void write_line(const Line& line) noexcept {
    for (int i = 0; i < kWords; ++i) {
        // Read once: what a rank stores now is dirty afterwards.
        const std::uint64_t value = load(line.cache + i);
        store(line.pool + i, value);
        store(line.known + i, value);
    }
}

FABRIC_UNWATCHED void fetch_line(const Line& line) noexcept {
    for (int i = 0; i < kWords; ++i) {
        std::uint64_t old = load(line.known + i);
        const std::uint64_t fresh = load(line.pool + i);
        if (fresh == old) continue;
        // Exchanged, not stored: a rank may have stored into the word since it was found clean, and
        // real caches do not lose that.
        __atomic_compare_exchange_n(line.cache + i, &old, fresh, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
        store(line.known + i, fresh);
    }
}

// Bytes [from, to) of a line that looks clean, but was written with what it held: byte by byte, so
// that what lies next to them stays as the pool has it.
FABRIC_UNWATCHED void write_bytes(const Line& line, Bytes from, Bytes to) noexcept {
    for (Bytes i = from; i < to; ++i) {
        const auto* cache = reinterpret_cast<const unsigned char*>(line.cache);
        auto* pool = reinterpret_cast<unsigned char*>(line.pool);
        auto* known = reinterpret_cast<unsigned char*>(line.known);
        const unsigned char value = __atomic_load_n(cache + i, __ATOMIC_RELAXED);
        __atomic_store_n(pool + i, value, __ATOMIC_RELAXED);
        __atomic_store_n(known + i, value, __ATOMIC_RELAXED);
    }
}

Bytes line_of(Bytes offset) noexcept {
    return offset / kCacheLine * kCacheLine;
}

}  // namespace

void HostCache::publish(Bytes offset, Bytes bytes) noexcept {
    const Bytes end = offset + bytes;
    for (Bytes at = line_of(offset); at < end; at += kCacheLine) {
        const LineLocks::Guard guard(locks_, at);
        const Line line = line_at(pool_, cache_, known_, at);
        if (is_dirty(line)) {
            write_line(line);
        } else {
            write_bytes(line, std::max(offset, at) - at, std::min(end, at + kCacheLine) - at);
        }
    }
}

void HostCache::acquire(Bytes offset, Bytes bytes) noexcept {
    for (Bytes at = line_of(offset); at < offset + bytes; at += kCacheLine) {
        const LineLocks::Guard guard(locks_, at);
        const Line line = line_at(pool_, cache_, known_, at);
        if (is_dirty(line)) write_line(line);
        fetch_line(line);
    }
}

void HostCache::write_back_if_dirty(Bytes offset) noexcept {
    const LineLocks::Guard guard(locks_, line_of(offset));
    const Line line = line_at(pool_, cache_, known_, line_of(offset));
    if (is_dirty(line)) write_line(line);
}

void HostCache::fetch_if_clean(Bytes offset) noexcept {
    const LineLocks::Guard guard(locks_, line_of(offset));
    const Line line = line_at(pool_, cache_, known_, line_of(offset));
    if (!is_dirty(line)) fetch_line(line);
}

}  // namespace emu
