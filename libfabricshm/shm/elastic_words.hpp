// Elastic words: how much of a published arena its maker shall keep, and what it keeps to.
// docs/pool.md, docs/shm_layout.md.
//
//   daemon:  target := (serial, bytes)      maker:  empties what lies behind, or begins to use it
//   maker:   kept := (the same serial, bytes that it uses)
//   daemon:  the serial is that of the newest target: the pages behind `bytes` go back to the pool
//
// Two phases: bytes go to another arena only when the maker has said that it uses them no more, and
// their pages are gone. A maker's word counts with the newest target alone, so that one that was
// slow to be heard can't be taken for an answer to what was asked later.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// A target, or what was kept of it: 24 bits of serial, 40 bits of pages. 0: none yet.
struct ElasticWord {
    std::uint32_t serial = 0;  // never 0
    Bytes bytes = 0;           // whole pages, from the arena's start

    bool operator==(const ElasticWord&) const = default;
};

inline constexpr std::uint32_t kElasticSerials = std::uint32_t{1} << 24;

constexpr std::uint64_t pack(const ElasticWord& word) noexcept {
    return std::uint64_t{word.serial % kElasticSerials} << 40 | word.bytes / kPageBytes;
}
constexpr ElasticWord unpack_elastic(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 40),
            (word & ((std::uint64_t{1} << 40) - 1)) * kPageBytes};
}
constexpr std::uint32_t next_serial(std::uint32_t serial) noexcept {
    return serial + 1 < kElasticSerials ? serial + 1 : 1;
}

/// A target as the maker has it: `bytes` are those of the application, behind the daemon's page.
struct ElasticTarget {
    ElasticWord word;
    Bytes bytes = 0;
};

/// What the maker of a cache says of its use, for the daemon's control loop and for people. Only
/// rises, but for the last.
struct ElasticUse {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t stall_ns = 0;   // that readers waited, all of them together
    std::uint64_t refetched = 0;  // bytes that were fetched again after they had left
    std::uint64_t near = 0;       // of them: a quarter more memory would still have had them
    std::uint64_t used = 0;       // bytes that are there now
    std::uint64_t readers = 0;    // now
};
inline constexpr std::size_t kElasticUseWords = sizeof(ElasticUse) / 8;

struct ElasticWords {
    // The daemon's.
    std::atomic<std::uint64_t> target;     // an ElasticWord
    std::atomic<std::uint64_t> committed;  // bytes from the arena's start that have pages
    char pad_[48];
    // The maker's, input to the daemon.
    std::atomic<std::uint64_t> kept;   // an ElasticWord
    std::atomic<std::uint64_t> floor;  // bytes that it can't do without; 0: it gives nothing
    std::atomic<std::uint64_t> use[kElasticUseWords];  // ElasticUse
    char pad2_[56];
};
static_assert(sizeof(ElasticWords) == 192 && offsetof(ElasticWords, kept) == 64);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace fabricshm
