// The messages between a session and fabricd, over a SOCK_SEQPACKET unix socket. docs/protocol.md.
//
// One message is one packet of exactly sizeof(Message) bytes: a header and the body of its type.
// A request carries an id that its reply repeats; replies may come in another order than the
// requests (an open that waits does not hold up others). Descriptors travel by SCM_RIGHTS.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "libfabricshm/base/world_max.hpp"

namespace fabricshm::proto {

inline constexpr std::uint32_t kMagic = 0x46425243;  // "FBRC"
inline constexpr std::uint16_t kVersion = 1;

inline constexpr std::size_t kNameBytes = 64;  // with the terminating zero
inline constexpr std::size_t kDimsMax = 8;
using fabricshm::kWorldMax;

enum class Type : std::uint16_t {
    kHello = 1,       // first on every connection; with session_id: go on after a restart
    kArenaOpen = 2,   // the reply carries the arena's descriptor
    kArenaAdopt = 3,  // after a restart of the daemon: the request carries the descriptor
    kArenaClose = 4,
    kRegionCreate = 5,
    kRegionOpen = 6,
    kRegionFree = 7,
    kTensorCreate = 8,
    kTensorOpen = 9,  // answered when the tensor is there or the timeout has passed
    kTensorFree = 10,
    kGroupJoin = 11,  // answered when the last rank has joined or the timeout has passed
    kGroupLeave = 12,
    kGroupShrink = 13,  // answered when every live member has asked or the timeout has passed
    kBye = 14,          // the session ends; no reply. Instead of a hello, with the session's id and
                        // token: a session of before ends, and the reply says so
    // The hardware lost bytes of the arena: `offset` and `bytes` in; the reply names the region
    // they lie in, if any. As a reply to nothing (id 0) it notifies all sessions of the arena.
    kPoisoned = 15,
    // The session's pages (shm/telemetry_page.hpp, shm/directive_page.hpp): the reply carries the
    // descriptor. Asked again, the daemon makes new ones.
    kTelemetryOpen = 16,
    kDirectivesOpen = 17,
    kShardCreate = 18,
    kShardOpen = 19,   // answered when the shard is there or the timeout has passed
    kShardClose = 20,  // gives a reader's line back
    kShardFree = 21,
    kShardMove = 22,  // asks for a move; the answer comes when it has begun
    kHosts = 23,      // the hosts of the daemon's cluster, a few at a time
    kSurvivors = 24,  // which ranks of a group over several hosts go on, settled in the cluster
    // Of published arenas (shm/pin_page.hpp): a reader's own page or, for the maker, one of a
    // reader's; the reply carries the descriptor.
    kPinPage = 25,
    kPinPages = 26,  // for the maker: the numbers of the pages in force
    kPinAdopt = 27,  // after a restart of the daemon: a reader's request carries its page
    // Of the daemon's own accord (id 0): the session's operations are traced from now on, into the
    // file (shm/trace_ring.hpp) whose descriptor comes along; 0 bytes and none: not any more.
    kTrace = 28,
    // All pages of the arena, which no region is taken for: answered when they are committed, or
    // what pool and quota allow is. Only to a daemon that knows it (Hello::last_type).
    kArenaCommit = 29,
};
inline constexpr Type kLastType = Type::kArenaCommit;
inline constexpr std::uint16_t kReplyBit = 0x8000;

/// Fixed widths and no pointers, in the byte order of the host: both ends are on one machine. 24
/// bytes, so that bodies are 8-aligned.
struct Header {
    std::uint32_t magic;
    std::uint16_t version;
    std::uint16_t type;  // Type, with kReplyBit in replies
    std::uint64_t request_id;
    std::int32_t status;  // replies: 0 or an Errc
    std::int32_t detail;  // replies: Error::detail
};
static_assert(sizeof(Header) == 24);

struct Hello {                         // both ways
    std::uint64_t session_id;          // request: 0, or the session to go on with
    std::uint8_t token[16];            // proves that a returning session is the one it says it is
    std::uint64_t daemon_epoch;        // reply: rises with every start of the daemon
    std::int64_t default_arena_bytes;  // reply
    char label[kNameBytes];            // request: for people
    char device[kNameBytes];    // request: what the process computes on; "": no configured device
    std::uint8_t instance[16];  // reply: of the daemon; zeros from one that does not say it
    std::uint8_t pool[16];      // reply: the UUID of the pool's device; zeros: ordinary memory
    char visibility[16];        // reply: the pool's profile, where several hosts share it; else ""
    // Reply: the last Type that the daemon knows, which hangs up on any after it. 0: it does not
    // say so, and knows none after kTrace.
    std::uint16_t last_type;
    std::uint16_t reserved[3];
};

/// In ArenaOpen::flags, behind those of the C ABI: the sender publishes the arena, and takes up
/// again one that it or another process of its user published before; or it reads it.
inline constexpr std::uint32_t kArenaPublish = 0x100;
inline constexpr std::uint32_t kArenaSubscribe = 0x200;
inline constexpr std::size_t kReadersBytes = 192;  // with the terminating zero

struct ArenaOpen {
    char name[kNameBytes];
    std::uint64_t bytes;            // request: wanted, 0 = default; reply: what it has
    std::uint32_t flags;            // FABRICSHM_ARENA_*
    std::uint32_t huge_page_bytes;  // reply: 0, or the huge page size that mappings should ask for
    std::uint64_t arena_id;         // reply; host-unique, never used twice
    std::uint64_t file_offset;  // reply: where the arena starts in the descriptor (devdax: not 0);
                                // kNotOneFile: in no single one, see pool_offset
    std::uint64_t align;        // reply: mappings start and end on multiples of this
    std::uint64_t link_bytes;   // reply: of the link page at the arena's start; 0: none
    // Replies, of an arena that is striped over several files (os/stripes.hpp), each with a
    // descriptor; else 0. A library of before refuses kNotOneFile instead of taking the first.
    std::uint64_t pool_offset;  // where it starts in the striped space, whose `skip` is `align`
    std::uint64_t stripe_bytes;
    std::uint32_t files;
    std::uint32_t reserved;
    // Request, with kArenaPublish: the readers, "u1000,g27" (users and groups by number); "": all.
    char readers[kReadersBytes];
};
inline constexpr std::uint64_t kNotOneFile = ~std::uint64_t{0};

struct ArenaRef {  // kArenaClose, kArenaCommit; kArenaAdopt with a descriptor
    std::uint64_t arena_id;
};

struct Region {  // create: bytes in; open, free: region_id in; replies: all
    std::uint64_t arena_id;
    std::uint64_t region_id;
    std::uint64_t generation;
    std::uint64_t offset;  // bytes from the arena's start
    std::uint64_t bytes;
};

struct Tensor {     // create: name, dtype, ndim, shape, flags; open: name, timeout_ms
    Region region;  // reply. A tensor's region starts with a TensorHeader (shm/)
    char name[kNameBytes];
    std::int64_t shape[kDimsMax];
    std::int64_t timeout_ms;
    std::uint32_t dtype;
    std::uint32_t ndim;
    std::int32_t owner_pid;  // reply: in the daemon's pid namespace
    std::uint32_t flags;     // create: kTensorLasting
};
/// It belongs to all sessions that have the arena open: at the end of one it goes over to another,
/// and any of them may free it. Of a tensor that its owner has made before: it does from now on.
inline constexpr std::uint32_t kTensorLasting = 1;

// create: name, dtype, ndim, shape, flags; open: name, timeout_ms; close, free: header's ids;
// move: header's ids, target, bytes_per_second
struct Shard {
    Region header;  // replies: the region of the ShardHeader (shm/)
    char name[kNameBytes];
    char target[2 * kNameBytes];  // move: as for fabricctl migrate; open's reply: the name of the
                                  // arena that the elements are in, first kNameBytes of it
    std::int64_t shape[kDimsMax];
    std::int64_t timeout_ms;
    std::uint64_t bytes_per_second;  // 0: as the daemon is configured
    std::uint32_t dtype;
    std::uint32_t ndim;
    std::uint32_t flags;     // kShardFixed
    std::int32_t slot;       // replies: the session's line in the header
    std::int32_t owner_pid;  // replies
    std::int32_t reserved;
};
/// The owner's memory is not coherent with the daemon's: the shard can't move.
inline constexpr std::uint32_t kShardFixed = 1;

struct Group {
    std::uint64_t arena_id;
    std::uint64_t group_id;  // leave, shrink: in; join: reply
    std::uint64_t epoch;     // reply: rises when a group of that name is made again
    char name[kNameBytes];   // join
    std::int32_t rank;       // join: wanted or -1; replies: given
    std::int32_t world;      // join: in; replies: of this group
    std::int64_t timeout_ms;
    std::uint64_t block_offset;  // replies: the group block, from the arena's start
    std::uint64_t block_bytes;
};

struct PinPageRef {  // kPinPage, kPinAdopt
    std::uint64_t arena_id;
    std::uint64_t number;      // kPinPage: 0: the reader's own; else which one. Replies: it
    std::uint64_t bytes;       // replies: of the file
    std::uint64_t session_id;  // replies: whose it is
    std::int32_t pid;          // replies
    std::uint32_t uid;         // replies
};
inline constexpr std::size_t kPinPagesListed = 48;

// Entries above `above`, ascending. All of them were in force at one moment when no reply of a
// listing has another `newest` or `changes` than the first one.
struct PinPages {
    std::uint64_t arena_id;
    std::uint64_t above;    // request
    std::uint64_t newest;   // reply: the number of the newest page that was ever made
    std::uint64_t changes;  // reply: as in the arena's header
    std::uint32_t total;    // reply: in force
    std::uint32_t count;    // reply: in this one
    std::uint64_t numbers[kPinPagesListed];
};

struct PageFile {  // kTelemetryOpen, kDirectivesOpen: replies, with a descriptor
    std::uint64_t bytes;
};

struct Trace {              // kTrace: replies, with a descriptor
    std::uint64_t bytes;    // of the file; 0: the trace has ended
    std::int64_t until_ns;  // CLOCK_MONOTONIC: no longer than that, whatever becomes of the daemon
    std::int64_t base_ns;   // how ticks become times, see base/tick_clock.hpp
    std::uint64_t base_ticks;
    std::uint64_t scale;
};

/// What became of one incarnation of a host; docs/hosts.md.
enum class HostState : std::uint32_t {
    kListed = 0,  // by a static list; nothing is known of it
    kUp = 1,
    kBack = 2,     // up, with an incarnation before it that is not fenced
    kSuspect = 3,  // may be up: nothing of it may be used by others yet
    kLost = 4,     // its ranks are given up
    kFenced = 5,
};
/// What a lost incarnation waits for until it is fenced, or how it was.
enum class FenceStage : std::uint8_t {
    kNone = 0,       // it is neither
    kPerson = 1,     // lost: waits for a person
    kCommand = 2,    // lost: the fence command runs, or will
    kFailed = 3,     // lost: the command failed, and will be tried again
    kCommanded = 4,  // fenced by the command
    kBoot = 5,       // ... by another boot of its machine
    kSelf = 6,       // ... by its own word
    kLeft = 7,       // ... since its daemon ended with no session left
    kOperator = 8,   // ... by a person's word
    kOther = 9,      // ... in a way of a later daemon
};
struct HostEntry {
    char name[kNameBytes];
    std::uint64_t incarnation;
    HostState state;
    std::uint32_t flags;  // kHostSelf
};
inline constexpr std::uint32_t kHostSelf = 1;  // the daemon's own place
inline constexpr std::size_t kHostsPerPage = 5;

// request: version, first. Replies: all. Entries of one version belong together; a reply without
// entries to a request with that version: nothing has changed.
struct Hosts {
    std::uint64_t version;  // request: of the entries that the session has; 0: it has none
    std::uint32_t first;    // request: the entry to begin with
    std::uint32_t total;    // reply: entries in all
    std::uint32_t count;    // reply: in this page
    std::uint32_t flags;    // reply: kHostsAdmit, kHostsInCluster
    std::uint64_t reserved;
    HostEntry entries[kHostsPerPage];
    // Of the same entries, behind them: readers of before do not know them. They change without a
    // new version.
    std::uint64_t state_ms[kHostsPerPage];  // how long it has been in its state
    FenceStage fence[8];
};
inline constexpr std::uint32_t kHostsAdmit = 1;  // groups over several hosts may be made now
/// Also of a daemon that has no place in it, and so no entry with kHostSelf.
inline constexpr std::uint32_t kHostsInCluster = 2;

enum class Settled : std::uint32_t {
    kPending,  // ask again
    kTheseGoOn,
    kOthersGoOn,  // others of the group were before, and these are not among them
    kNoStore,     // there is nothing that could settle it
    kTooMany,     // this daemon settles no more of them in this hour
};

struct Survivors {
    std::uint8_t group[16];    // request: random, of one epoch of one group
    std::uint64_t members[4];  // request: bit rank % 64 of word rank / 64
    Settled settled;           // reply
    std::uint32_t reserved;
};
static_assert(sizeof(Survivors::members) * 8 == kWorldMax);

/// The largest body decides the size. One size for all: a packet of any other is rejected before it
/// is read.
struct Message {
    Header header;
    union {
        Hello hello;
        ArenaOpen arena_open;
        ArenaRef arena;
        Region region;
        Tensor tensor;
        Shard shard;
        Group group;
        PageFile page;
        Trace trace;
        PinPageRef pin_page;
        PinPages pin_pages;
        Hosts hosts;
        Survivors survivors;
        std::uint8_t raw[488];
    };
};
static_assert(sizeof(Message) == 512);
static_assert(std::is_trivially_copyable_v<Message>);

}  // namespace fabricshm::proto
