// The group block: the words and slots on which the ranks of one group meet. docs/shm_layout.md.
//
//   GroupHeader | RankWords[world] | TinySlot[world][kTinyTurns] | Channel[world][world]
//   | slots[world][2] | posts[world][kTinyTurns]
//
// The daemon formats it in the arena before anybody joins and later only marks ranks dead; the
// ranks write the rest. All of it can be written by every process of the job, so both sides compute
// the offsets from what the daemon told them, never from what the block says.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kGroupMagic = 0x3150474352424146;
inline constexpr std::uint32_t kGroupVersion = 3;
inline constexpr int kTuningWords = 16;
inline constexpr int kStoreWords = 12;

/// Alone on its cache lines: read in the slow part of every wait.
struct alignas(kCachePair) GroupHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t world;
    std::uint64_t group_id;
    std::uint64_t epoch;
    std::uint64_t slot_bytes;

    // Why the group is broken: an Errc in the low half and a rank in the high half, 0 while it
    // works. Set once, by whoever sees the failure first; never cleared. On memory that is not
    // coherent every rank has a word of its own for this, RankWords::failure.
    std::atomic<std::uint64_t> broken;
    char pad_[kCachePair - 48];

    // Chunks claimed so far by all ranks in all operations; only rises. docs/concurrency.md.
    std::atomic<std::uint64_t> claim;
    char pad2_[kCachePair - 8];

    // The clock value up to which rank 0 has commanded the others to start (trigger `sync`).
    std::atomic<std::uint64_t> command;
    std::atomic<std::uint32_t> command_sleepers;
    char pad3_[kCachePair - 12];

    // What rank 0 decided for the group (collective/tuning.hpp), written before its clock is 1.
    std::uint64_t tuning[kTuningWords];

    // Which operations store past the cache, a bit each (collective/store_policy.hpp). Written by
    // rank 0 alone, a few times a second at most; the others follow when they see it.
    std::atomic<std::uint64_t> past_cache[kStoreWords];
    char pad4_[kCachePair - 8 * kStoreWords];
};
static_assert(sizeof(GroupHeader) == 5 * kCachePair);

/// What one rank shows to all others. The first line is all that a fast operation touches. Each
/// line has one writer, as far as memory that is not coherent is concerned: there, two writers of
/// one line would overwrite each other's words (the words of sleepers and the bell are not used).
struct alignas(kCachePair) RankWords {
    // How far the rank has come: rises by one with every step of every operation, never falls, is
    // never reset. Written by its rank alone, with release, so that who acquires a value sees
    // everything the rank stored before.
    std::atomic<std::uint64_t> clock;
    // How many processes sleep on `clock`; in its line, so that looking costs the rank nothing.
    std::atomic<std::uint32_t> sleepers;
    std::uint32_t reserved;
    // What the rank called, for even and odd operations, but for those in tiny lines: of the others
    // a rank may be one ahead of the slowest, never two. Stored relaxed before the clock's release
    // makes them valid.
    std::atomic<std::uint64_t> signature[2];
    std::atomic<std::uint64_t> input_offset[2];   // from the arena's start; kNoOffset: not in it
    std::atomic<std::uint64_t> output_offset[2];  // likewise

    // Second line: who the rank is, written once before its clock reaches 1.
    std::int64_t pid;
    std::uint64_t start_time;     // of the process, in clock ticks since boot: beats pid reuse
    std::uint64_t pid_namespace;  // inode; a pid means nothing in another one
    std::uint32_t membarrier;     // 1: the process takes part in expedited global barriers
    // Raised by any peer that did something on a channel of this rank; one word to sleep on.
    std::atomic<std::uint32_t> bell_sleepers;
    std::atomic<std::uint64_t> bell;
    // The processor on which the rank signalled last, plus 1; 0 while unknown. A hint for who
    // waits: spinning for somebody who needs this very processor only holds both up.
    std::atomic<std::uint32_t> processor;
    char pad2_[20];

    // Third line: this rank's reason for breaking the group, as in GroupHeader::broken, where hosts
    // do not share caches and no exchange could decide who was first. Written by its rank alone.
    std::atomic<std::uint64_t> failure;
    // Where hosts share caches: the arrival (a value of the clock) of the last operation whose
    // outputs this rank does not touch any more, or kLeftForGood. Written by its rank alone.
    std::atomic<std::uint64_t> left;
    char pad3_[kCacheLine - 16];

    // Fourth line: written by the daemon alone. Set to 1 when the process has ended; never cleared.
    std::atomic<std::uint32_t> dead;
    char pad4_[kCacheLine - 4];
};
static_assert(sizeof(RankWords) == 2 * kCachePair);
static_assert(offsetof(RankWords, pid) == kCacheLine);
static_assert(offsetof(RankWords, failure) == 2 * kCacheLine);
static_assert(offsetof(RankWords, dead) == 3 * kCacheLine);

/// In `left`: the rank has seen the group broken and touches nothing of its peers any more.
inline constexpr std::uint64_t kLeftForGood = ~std::uint64_t{0};

inline constexpr std::uint64_t kNoOffset = ~std::uint64_t{0};

/// One cache line of a tiny operation: data and flag travel together, in one transfer. x86 keeps
/// the order of stores, so who sees the flag in this line sees the data in it too.
struct alignas(kCacheLine) TinyLine {
    std::byte data[56];
    std::atomic<std::uint64_t> flag;  // the clock value of the operation
};
static_assert(sizeof(TinyLine) == kCacheLine);

inline constexpr int kTinyLines = 10;
/// The first line gives 8 of its 56 bytes to the signature.
inline constexpr Bytes kTinyBytes = kTinyLines * 56 - 8;  // 552

/// How many turns of tiny operations a rank has slots for. A rank posts up to 11 turns past the
/// slowest, which may still read posts of 3 turns before: 15 are needed (collective/tiny.cpp).
inline constexpr std::uint64_t kTinyTurns = 16;

struct alignas(kCachePair) TinySlot {
    TinyLine lines[kTinyLines];
};
static_assert(sizeof(TinySlot) == 5 * kCachePair);

/// One piece of a message from one rank to another.
struct ChannelPiece {
    std::uint64_t offset;  // of the bytes, from the arena's start
    std::uint64_t bytes;   // in this piece
    std::uint64_t total;   // of the whole message
    std::int32_t tag;
    std::uint32_t first;  // 1: a message starts here
};

/// From one rank to another: a ring of two pieces. The sender writes the first pair of lines, the
/// receiver the second; both counters only rise.
struct alignas(kCachePair) Channel {
    std::atomic<std::uint64_t> sent;  // pieces
    ChannelPiece pieces[2];           // piece n is in pieces[n % 2]
    char pad_[kCachePair - 8 - 2 * sizeof(ChannelPiece)];
    std::atomic<std::uint64_t> taken;  // pieces
    char pad2_[kCachePair - 8];
};
static_assert(sizeof(Channel) == 2 * kCachePair);

/// Where everything is, from the block's start. Pure arithmetic on `world`.
struct GroupLayout {
    int world = 0;
    Bytes ranks = 0;
    Bytes tiny = 0;
    Bytes channels = 0;
    Bytes slots = 0;
    Bytes slot_bytes = 0;  // of one slot; each rank has two
    Bytes posts = 0;
    Bytes post_bytes = 0;  // of one post that goes with a tiny slot
    Bytes total = 0;

    /// World sizes from 1 to proto::kWorldMax.
    static GroupLayout of(int world) noexcept;
};

struct GroupBlockInfo {
    std::uint64_t group_id = 0;
    std::uint64_t epoch = 0;
    int world = 0;
};

/// Bytes that the block of a group takes, a multiple of 4096.
Bytes group_block_bytes(int world) noexcept;

/// Writes an empty block; its bytes may hold anything before. For the daemon, before any reply that
/// names the block.
void format_group_block(std::byte* block, const GroupBlockInfo& info,
                        const Visibility& view = {}) noexcept;

/// Marks `rank` dead and wakes everybody who sleeps in the block. Writes only; safe on a block that
/// clients have scribbled over. Idempotent.
void mark_rank_dead(std::byte* block, int world, int rank, const Visibility& view = {}) noexcept;

/// What `broken` and `failure` hold for `code` and `rank`.
constexpr std::uint64_t failure_reason(Errc code, int rank) noexcept {
    return static_cast<std::uint32_t>(code) |
           (static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32);
}

/// Puts `code` and `rank` into `broken` unless something is there, and wakes everybody. On coherent
/// memory only.
void break_group(std::byte* block, int world, Errc code, int rank) noexcept;

}  // namespace fabricshm
