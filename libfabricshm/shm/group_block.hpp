// The group block: the words and slots through which the ranks of one group work together.
// docs/shm_layout.md.
//
//   GroupHeader | RankWords[world] | TinySlot[world][kTinyTurns]
//   | ChannelLine[world][world][channel_lines] | ChannelTaken[world][world] | ChannelCalls[world]
//   | slots[world][2] | posts[world][kTinyTurns] | TreeWords[world] | tree posts | tree buffers
//
// The daemon formats it in the arena before any rank joins and later only marks ranks dead; the
// ranks write the rest. All of it can be written by every process of the job, so both sides compute
// the offsets from what the daemon reported to them, never from what the block says.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kGroupMagic = 0x3150474352424146;
inline constexpr std::uint32_t kGroupVersion = 6;
inline constexpr int kTuningWords = 16;
inline constexpr int kStoreWords = 12;
inline constexpr int kProcessorWords = 4;

/// Alone on its cache lines: read in the slow part of every wait.
struct alignas(kCachePair) GroupHeader {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t world;
    std::uint64_t group_id;
    std::uint64_t epoch;
    std::uint64_t slot_bytes;

    // Why the group is broken: an Errc in the low half and a rank in the high half, 0 while it
    // works. Set once, by the first process that observes the failure; never cleared. On memory
    // that is not coherent every rank has a word of its own for this, RankWords::failure.
    std::atomic<std::uint64_t> broken;
    char pad_[kCachePair - 48];

    // Chunks claimed so far by all ranks in all operations; only rises. docs/concurrency.md.
    std::atomic<std::uint64_t> claim;
    char pad2_[kCachePair - 8];

    // The clock value up to which rank 0 has commanded the others to start (trigger `sync`).
    std::atomic<std::uint64_t> command;
    std::atomic<std::uint32_t> command_sleepers;
    char pad3_[kCachePair - 12];

    // What rank 0 decided for the group (collective/tuning.hpp), written before its clock is 2.
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
    // never reset. Written by its rank alone, with release, so that an acquire of a value sees
    // everything that the rank stored before.
    std::atomic<std::uint64_t> clock;
    // How many processes sleep on `clock`; in its line, so that a check costs the rank nothing.
    std::atomic<std::uint32_t> sleepers;
    // Along the tree: 1 when this rank and all below it show the same buffers as on the last
    // arrival. Stored relaxed before the clock's release makes it valid.
    std::atomic<std::uint32_t> unchanged;
    // What the rank called, for even and odd operations, but for those in tiny lines: of the others
    // a rank may be one ahead of the slowest, never two. Stored relaxed before the clock's release
    // makes them valid.
    std::atomic<std::uint64_t> signature[2];
    std::atomic<std::uint64_t> input_offset[2];   // from the arena's start; kNoOffset: not in it
    std::atomic<std::uint64_t> output_offset[2];  // likewise

    // Second line: the rank's identity, written once before its clock reaches 1.
    std::int64_t pid;
    std::uint64_t start_time;     // of the process, in clock ticks since boot: beats pid reuse
    std::uint64_t pid_namespace;  // inode; a pid means nothing in another one
    std::uint32_t membarrier;     // 1: the process takes part in expedited global barriers
    // Raised by any peer that did something on a channel of this rank; one word to sleep on.
    std::atomic<std::uint32_t> bell_sleepers;
    std::atomic<std::uint64_t> bell;
    // The processor on which the rank signalled last, plus 1; 0 while unknown. A hint for waiters:
    // spinning for a rank that needs this very processor only holds both up.
    std::atomic<std::uint32_t> processor;
    char pad2_[20];

    // Third line: this rank's reason for breaking the group, as in GroupHeader::broken, where hosts
    // do not share caches and no exchange could decide which was first. Written by its rank alone.
    std::atomic<std::uint64_t> failure;
    // Where hosts share caches: the arrival (a value of the clock) of the last operation whose
    // outputs this rank does not touch any more, or kLeftForGood. Written by its rank alone.
    std::atomic<std::uint64_t> left;
    // Written once before its clock reaches 1, as the line before: the kernel that the rank runs
    // on, and the processors there that it may use, by their number modulo 256.
    std::uint64_t kernel;
    std::uint64_t processors[kProcessorWords];
    // 1 when the rank has left the group, alive: its clock stays where it is. Written by its rank.
    std::atomic<std::uint32_t> departed;
    char pad3_[kCacheLine - 28 - 8 * kProcessorWords];

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

/// How many turns of tiny operations a rank has slots for. A rank posts up to 23 turns past the
/// slowest, which may still read posts of 7 turns before: 31 are needed (collective/tiny.cpp).
inline constexpr std::uint64_t kTinyTurns = 32;

/// Posts up to this size lie in the slot of their flag.
inline constexpr Bytes kTinyBytes = 112;
/// Posts up to this size share the flag's cache line.
inline constexpr Bytes kTinyLineBytes = 48;

/// What a rank posts in one turn of the tiny engine. The flag is stored last: x86 keeps the order
/// of stores, so a reader that sees the flag sees the rest. Data ends where the words begin, so
/// that short posts are in the line of the flag and come with it, in one transfer.
struct alignas(kCachePair) TinySlot {
    std::byte data[kTinyBytes];
    std::uint64_t chain;              // what the rank called in its run, see collective/tiny.cpp
    std::atomic<std::uint64_t> flag;  // the clock value of the operation

    /// Where a post of `bytes` lies; on a vector's boundary.
    std::byte* place(Bytes bytes) noexcept { return data + kTinyBytes - round_up(bytes, 16); }
    std::byte* flag_line() noexcept { return data + kCacheLine; }
};
static_assert(sizeof(TinySlot) == kCachePair);
static_assert(offsetof(TinySlot, chain) == kCacheLine + kTinyLineBytes);

/// What all ranks together may post in one operation along the tree, the least that each may, and
/// the most.
inline constexpr Bytes kTreeBudget = 16 * kKiB;
inline constexpr Bytes kMinTreeBytes = 64;
inline constexpr Bytes kMaxTreeBytes = 560;
/// No tree of up to 256 ranks is higher: they are joined in eights three times over (the ranks of a
/// cache, the caches of a node, the nodes), each time in three steps at most, since 65 ranks, 64
/// more caches and 64 more nodes are the fewest that need nine.
inline constexpr int kMaxTreeHeight = 9;

/// A post on the way up the tree (collective/tree.cpp): as many lines as its bytes take, the first
/// with the flag, which is stored last.
struct alignas(kCacheLine) TreePost {
    std::atomic<std::uint64_t> flag;  // the clock value of the operation; only rises
    std::uint64_t called;             // what the rank called
    std::byte data[48];               // and on, into the next lines
};
static_assert(sizeof(TreePost) == kCacheLine);

/// What a rank hands down the tree, and what the ranks below it wait for.
inline constexpr Bytes kTreeDownBytes = 1064;
struct alignas(kCachePair) TreeRelease {
    std::atomic<std::uint64_t> flag;  // as in a post: all ranks have come so far
    std::atomic<std::uint32_t> sleepers;
    std::atomic<std::uint32_t> unchanged;  // as in RankWords, of all ranks
    std::uint64_t called;
    std::byte data[kTreeDownBytes];
    char pad_[kCacheLine];  // a whole number of pairs
};
static_assert(sizeof(TreeRelease) == 9 * kCachePair);

/// What one rank shows for the tree. Written by its rank alone, but for the count of sleepers.
struct alignas(kCachePair) TreeWords {
    // Where the rank may run, written once before its clock reaches 1; collective/domains.hpp.
    std::int32_t node;
    std::int32_t cache;
    char pad_[kCachePair - 8];
    TreeRelease release;
};
static_assert(sizeof(TreeWords) == 10 * kCachePair);

/// Where a rank's buffers lie, as it shows them on arrival along the tree: four ranks to a line.
struct TreeBuffers {
    std::atomic<std::uint64_t> input;  // from the arena's start; kNoOffset: not in it
    std::atomic<std::uint64_t> output;
};
static_assert(sizeof(TreeBuffers) == 16);

/// What the first line of a message, or of a piece of one, says of it.
enum class MessageKind : std::uint8_t {
    kInline = 1,     // the bytes are in this line and those behind it
    kPiece = 2,      // the bytes are in the arena, where a MessagePiece says
    kWithdrawn = 3,  // was a piece; its sender has taken the memory back before it was read
    // A whole message in the sender's own buffer, as a MessageOffer says (collective/offer.hpp).
    // The receiver makes it the third or the fourth, the sender the second: whichever is first.
    kOffered = 4,
    kMoved = 5,    // its sender has copied it to its stage, and waits no more
    kClaimed = 6,  // its receiver is reading it where it is
    kShared = 7,   // likewise, and the sender may copy a part of it straight to where it is wanted
};

/// ChannelLine::what of a first line, packed into one word.
struct MessageWhat {
    std::int32_t tag;
    std::uint16_t bytes;  // kInline only
    MessageKind kind;
    std::uint8_t first;  // 1: a message starts here
};
static_assert(sizeof(MessageWhat) == 8);

/// In the data of a first line of kind kPiece.
struct MessagePiece {
    std::uint64_t offset;  // of the bytes, from the arena's start
    std::uint64_t bytes;   // in this piece
    std::uint64_t total;   // of the whole message
};

/// In the data of a line of kind kOffered, and of what becomes of it.
struct MessageOffer {
    MessagePiece piece;  // the sender's buffer
    // From the arena's start; kNoOffset: nowhere. Written by the sender: where it copies the bytes
    // if it moves them. In a line of kind kShared, by the receiver before: where it wants them.
    std::atomic<std::uint64_t> place;
    // kShared: how many chunks the sender has copied, written by the sender alone, and how many
    // sleep on that; how often a chunk was claimed, by either side.
    std::atomic<std::uint64_t> copied;
    std::atomic<std::uint32_t> sleepers;
    std::atomic<std::uint32_t> claims;
};
static_assert(sizeof(MessageOffer) == 48);

/// One cache line of the ring from one rank to another. Line n, counted from 0 and for ever, is at
/// n % channel_lines; a message takes one line or a few that follow each other. `number` is n + 1
/// and stored last, so that data and flag travel in one transfer, as in a TinyLine. It is there in
/// every line: what stands where a number is expected is never a user's byte.
struct alignas(kCacheLine) ChannelLine {
    std::atomic<std::uint64_t> number;
    std::atomic<std::uint64_t> what;  // a MessageWhat; lines behind the first have data here, too
    std::byte data[48];
};
static_assert(sizeof(ChannelLine) == kCacheLine);

inline constexpr Bytes kFirstLineBytes = 48;
inline constexpr Bytes kNextLineBytes = 56;

/// How many lines of a ring its receiver has taken; the sender writes no further than
/// channel_lines beyond. Only rises; written by the receiver alone.
struct alignas(kCacheLine) ChannelTaken {
    std::atomic<std::uint64_t> taken;
    char pad_[kCacheLine - 8];
};
static_assert(sizeof(ChannelTaken) == kCacheLine);

/// One bit for each rank that sent something since the receiver took the bit, so that one that
/// takes messages from many does not poll all rings. A hint: a bit may be missing for a moment. Not
/// used in small groups, nor where hosts do not share caches.
struct alignas(kCachePair) ChannelCalls {
    std::atomic<std::uint64_t> from[4];
    char pad_[kCachePair - 32];
};
static_assert(sizeof(ChannelCalls) == kCachePair);

/// Where everything is, from the block's start. Pure arithmetic on `world`.
struct GroupLayout {
    int world = 0;
    Bytes ranks = 0;
    Bytes tiny = 0;
    Bytes channels = 0;
    std::uint64_t channel_lines = 0;  // of one ring, a power of two from 16 to 64
    Bytes taken = 0;                  // [to * world + from]
    Bytes calls = 0;                  // [to]
    Bytes slots = 0;
    Bytes slot_bytes = 0;  // of one slot; each rank has two
    Bytes posts = 0;
    Bytes post_bytes = 0;   // of one post that goes with a tiny slot
    Bytes post_stride = 0;  // from one to the next
    Bytes tree = 0;
    Bytes tree_posts = 0;    // [height][position][tree_lines], of 64 bytes
    Bytes tree_lines = 0;    // for each rank whose bytes are in a post
    Bytes tree_bytes = 0;    // of one rank that fit
    Bytes tree_buffers = 0;  // [parity][position]
    Bytes total = 0;

    /// World sizes from 1 to proto::kWorldMax.
    static GroupLayout of(int world) noexcept;
};

struct GroupBlockInfo {
    std::uint64_t group_id = 0;
    std::uint64_t epoch = 0;
    int world = 0;
};

/// Lines of a post along the tree that carries `bytes`.
constexpr Bytes tree_lines_for(Bytes bytes) noexcept {
    return (offsetof(TreePost, data) + bytes + kCacheLine - 1) / kCacheLine;
}

/// Bytes that each of `world` ranks may post along the tree.
constexpr Bytes tree_bytes_for(int world) noexcept {
    const Bytes fair = kTreeBudget / static_cast<Bytes>(world) / 8 * 8;
    return fair < kMinTreeBytes ? kMinTreeBytes : fair > kMaxTreeBytes ? kMaxTreeBytes : fair;
}

/// Bytes that the block of a group takes, a multiple of 4096.
Bytes group_block_bytes(int world) noexcept;

/// Writes an empty block; its bytes may hold anything before. For the daemon, before any reply that
/// names the block.
void format_group_block(std::byte* block, const GroupBlockInfo& info,
                        const Visibility& view = {}) noexcept;

/// Marks `rank` dead and wakes all that sleep in the block. Writes only; safe on a block that
/// clients have scribbled over. Idempotent.
void mark_rank_dead(std::byte* block, int world, int rank, const Visibility& view = {}) noexcept;

/// What `broken` and `failure` hold for `code` and `rank`.
constexpr std::uint64_t failure_reason(Errc code, int rank) noexcept {
    return static_cast<std::uint32_t>(code) |
           (static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32);
}

/// Puts `code` and `rank` into `broken` unless something is there, and wakes all. On coherent
/// memory only.
void break_group(std::byte* block, int world, Errc code, int rank) noexcept;

}  // namespace fabricshm
