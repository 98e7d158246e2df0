// ShardHeader: where a shard's bytes are now, which version they have, and which sessions are
// reading them. docs/migration.md has the protocol and why it is right.
//
//   header's region:  magic, places | word | one line per reading session
//   a copy's region:  the elements, in this arena or in another one
//
// The header never moves; its places name at most two copies, of which the word says the valid one.
// All words may be written by every process of the job: the daemon takes offsets from its own
// records only, and a reader checks a place against its mapping before it follows it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kShardMagic = 0x3244524853424146;  // "FABSHRD2"
inline constexpr int kShardReadersMax = 318;                      // sessions that have it open

/// One copy of the elements.
struct ShardPlace {
    std::atomic<std::uint64_t> arena_id;
    std::atomic<std::uint64_t> offset;  // from that arena's start
};

/// One session's line. Written by that session alone while `session` is its number.
struct alignas(kCacheLine) ShardReader {
    std::atomic<std::uint64_t> session;  // written by the daemon; 0: no session's
    // Reads under way, by the place that they read, in the low half; in the high half the low half
    // of the session's number. Changed by compare-and-swap: a session that has lost its line can't
    // change its successor's pins.
    std::atomic<std::uint64_t> pins[2];
    char pad_[40];
};

struct alignas(kCachePair) ShardHeader {
    // First line: written by the daemon. The magic comes last and goes first.
    std::atomic<std::uint64_t> magic;
    std::uint64_t region_id;
    std::uint64_t generation;  // of the header's region
    std::uint64_t bytes;       // of the elements
    ShardPlace places[2];

    // Second line: bit 0 the owner is writing, bits 1-24 how often the shard moved, bits 25-63 how
    // often it was published. One word, so that a move and a write exclude each other by one
    // compare-and-swap; the move's number modulo 2 is the place of the valid copy.
    std::atomic<std::uint64_t> word;
    char pad_[56];

    ShardReader readers[kShardReadersMax];
};
static_assert(sizeof(ShardReader) == 64);
static_assert(offsetof(ShardHeader, word) == 64);
static_assert(offsetof(ShardHeader, readers) == 128);
static_assert(sizeof(ShardHeader) == 20480);

inline constexpr Bytes kShardHeaderBytes = sizeof(ShardHeader);

/// The word, taken apart.
struct ShardWord {
    static constexpr std::uint64_t kWriting = 1;
    static constexpr std::uint64_t kMove = 2;
    static constexpr int kVersionBit = 25;
    static constexpr std::uint64_t kVersion = std::uint64_t{1} << kVersionBit;

    std::uint64_t bits = 0;

    bool writing() const noexcept { return (bits & kWriting) != 0; }
    std::uint64_t moves() const noexcept { return (bits & (kVersion - 1)) >> 1; }
    std::uint64_t version() const noexcept { return bits >> kVersionBit; }
    /// Which of the two places holds the valid copy.
    int place() const noexcept { return static_cast<int>(moves() & 1); }
    /// The same with one move more. The count wraps; it is compared for equality only.
    ShardWord moved() const noexcept {
        const std::uint64_t rest = bits & ~((kVersion - 1) & ~kWriting);
        return {rest | ((bits + kMove) & (kVersion - 1) & ~kWriting)};
    }
    ShardWord published() const noexcept { return {(bits & ~kWriting) + kVersion}; }
};

/// Which shard a header has to belong to.
struct ShardKey {
    std::uint64_t region_id = 0;
    std::uint64_t generation = 0;
};

// ---- By the daemon ---------------------------------------------------------------------------

/// Makes the header of a new shard, version 0, before any other process knows of it.
void format_shard(ShardHeader& header, ShardKey key, Bytes bytes, std::uint64_t arena_id,
                  std::uint64_t offset) noexcept;

/// Notifies readers and the owner that the shard is gone. Reads under way may end.
void retire_shard(ShardHeader& header) noexcept;

/// Gives a reader's line to a session, or to none (0): its pins are forgotten.
void assign_reader(ShardHeader& header, int slot, std::uint64_t session) noexcept;

/// Writes down where the other copy is going to be: by the daemon, while no session can be reading
/// `place`.
void set_place(ShardHeader& header, int place, std::uint64_t arena_id,
               std::uint64_t offset) noexcept;

/// Makes the other place the valid one, unless the owner has written or published since `seen` was
/// loaded. After true no new read begins at the old place.
bool swap_places(ShardHeader& header, ShardWord seen) noexcept;

/// Whether the session of `slot` is reading at `place`. After swap_places(), false means for good:
/// the session can't begin another read there.
bool is_pinned(const ShardHeader& header, int slot, int place) noexcept;

// ---- By all processes ------------------------------------------------------------------------

/// True when the header belongs to a shard that is there, and to this one.
bool is_shard(const ShardHeader& header, ShardKey key, const Visibility& view = {}) noexcept;

/// The word as it is now; what was published before it is visible.
ShardWord word_of(const ShardHeader& header, const Visibility& view = {}) noexcept;

// ---- By a session that has it open -----------------------------------------------------------

/// A read under way.
struct ShardPin {
    ShardWord word;  // its version and place
    std::uint64_t arena_id = 0;
    std::uint64_t offset = 0;
};

/// Begins a read of `wanted` or a later version in the line `slot` of session `session`. Never
/// waits for a move; waits for the version, and for an owner that is writing. kTimeout; kNotFound
/// when the shard is gone; kClosed when the line is no longer this session's.
Result<ShardPin> pin_shard(ShardHeader& header, ShardKey key, int slot, std::uint64_t session,
                           std::uint64_t wanted, TimePoint deadline, const Visibility& view = {});

/// Ends a read. True: what was read is one version, whole. False: the owner wrote meanwhile, or the
/// session lost its line, or (on memory that is not coherent) the shard was freed; what was read
/// must not be used.
bool unpin_shard(ShardHeader& header, int slot, std::uint64_t session, const ShardPin& pin,
                 const Visibility& view = {}) noexcept;

/// Begins to write: by the owner, one thread at a time. From here on the shard does not move, and
/// readers wait. kNotFound when it is gone, kBusy when it is being written already.
Result<ShardPin> begin_write(ShardHeader& header, ShardKey key, const Visibility& view = {});

/// Ends it, raising the version. Returns the new one, or 0 when nothing was being written.
std::uint64_t publish_shard(ShardHeader& header, const Visibility& view = {}) noexcept;

}  // namespace fabricshm
