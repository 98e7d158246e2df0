// What the journal says: one struct per event, written as it lies in memory (one host, one build;
// the start record's version refuses a journal of another layout).

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

inline constexpr std::uint64_t kJournalMagic = 0x4c4e524a43424146;  // "FABCJRNL"
inline constexpr std::uint32_t kJournalVersion = 4;

enum class RecordType : std::uint16_t {
    kStart = 1,
    kSessionOpened = 2,
    kSessionEnded = 3,
    kArenaMade = 4,
    kArenaGone = 5,
    kArenaJoined = 6,
    kArenaLeft = 7,
    kRegion = 8,  // made, quarantined or freed: the newest one of an id counts
    kTensor = 9,  // comes before its region's kRegion, so that no crash leaves half of it
    kGroupMade = 10,
    kGroupMember = 11,
    kGroupShrunk = 12,
    kGroupGone = 13,
    kSessionEnding = 14,  // its arenas are being left; comes before all that brings about
    kLost = 15,
    kShard = 16,
    kShardReader = 17,
    kShardGone = 18,
    kQuota = 19,
    kArenaGrown = 20,
    kSessionHost = 21,
    kArenaPublished = 22,
    kPinPage = 23,
    kPinPageGone = 24,
    kArenaShrunk = 25,
};

/// First in the file and nowhere else. `magic` distinguishes a journal from any other file,
/// `version` its layout.
struct StartRecord {
    static constexpr RecordType kType = RecordType::kStart;
    std::uint64_t magic;
    std::uint64_t daemon_epoch;
    std::uint64_t last_id;
    std::uint32_t version;
    std::uint32_t reserved;
};

struct SessionRecord {
    static constexpr RecordType kType = RecordType::kSessionOpened;
    std::uint64_t session;
    std::uint8_t token[16];
    std::int32_t pid;
    std::uint32_t uid;
    std::uint32_t gid;
    std::uint32_t reserved;
    char label[fabricshm::proto::kNameBytes];
    char device[fabricshm::proto::kNameBytes];  // "": none
};

/// The session's process is on another host of the pool. After its kSessionOpened and before the
/// session is answered: one that was killed between the two knows of a session that holds nothing.
struct SessionHostRecord {
    static constexpr RecordType kType = RecordType::kSessionHost;
    std::uint64_t session;
    std::uint64_t boot;         // of that host
    std::uint64_t incarnation;  // of that host in the cluster; 0: none
    std::uint64_t given_up;     // 1: its host is silent; a second record says so
    std::uint64_t machine;      // of that host
    std::uint64_t pid_namespace;
    char host[fabricshm::proto::kNameBytes];
};

struct SessionEndRecord {
    static constexpr RecordType kType = RecordType::kSessionEnded;
    std::uint64_t session;
};

/// From here on the session is not resumed, even if the daemon is killed before its kSessionEnded.
struct SessionEndingRecord {
    static constexpr RecordType kType = RecordType::kSessionEnding;
    std::uint64_t session;
};

/// Also how the arena's file is recognised when a session presents it after a restart.
struct ArenaRecord {
    static constexpr RecordType kType = RecordType::kArenaMade;
    std::uint64_t arena;
    std::uint64_t bytes;
    std::uint64_t align;
    std::uint64_t huge_page_bytes;
    std::uint64_t file_offset;
    std::uint64_t link_bytes;  // of the link page at its start, or 0
    std::uint64_t device;      // st_dev, st_ino, st_size and seals of the descriptor
    std::uint64_t inode;
    std::uint64_t file_bytes;
    std::uint32_t seals;
    std::uint32_t uid;
    char name[fabricshm::proto::kNameBytes];
};

/// The arena's first `committed` bytes have pages; without such a record all of them have.
struct ArenaGrownRecord {
    static constexpr RecordType kType = RecordType::kArenaGrown;
    std::uint64_t arena;
    std::uint64_t committed;
};

/// Of a published arena without regions: no more than its first `committed` bytes have pages.
struct ArenaShrunkRecord {
    static constexpr RecordType kType = RecordType::kArenaShrunk;
    std::uint64_t arena;
    std::uint64_t committed;
};

struct ArenaEndRecord {
    static constexpr RecordType kType = RecordType::kArenaGone;
    std::uint64_t arena;
};

struct ArenaJoinRecord {
    static constexpr RecordType kType = RecordType::kArenaJoined;
    std::uint64_t arena;
    std::uint64_t session;
};

struct ArenaLeaveRecord {
    static constexpr RecordType kType = RecordType::kArenaLeft;
    std::uint64_t arena;
    std::uint64_t session;
};

/// In RegionRecord::is_tensor.
inline constexpr std::uint32_t kTensorOfSession = 1;
inline constexpr std::uint32_t kTensorOfArena = 2;  // lasting

struct RegionRecord {
    static constexpr RecordType kType = RecordType::kRegion;
    std::uint64_t arena;
    std::uint64_t region;
    std::uint64_t generation;
    std::uint64_t session;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint32_t state;  // LeaseState
    // kTensorOfSession, kTensorOfArena: the kTensor record before it belongs to it.
    std::uint32_t is_tensor;
    // The shard that it is the header or a copy of, 0 and 0 for others. One that its shard's kShard
    // does not name was granted or let go of right before a crash, and is freed.
    std::uint64_t shard_arena;
    std::uint64_t shard_region;
};

struct TensorRecord {
    static constexpr RecordType kType = RecordType::kTensor;
    std::uint64_t arena;
    std::uint64_t region;
    std::int64_t shape[fabricshm::proto::kDimsMax];
    std::uint32_t dtype;
    std::uint32_t ndim;
    char name[fabricshm::proto::kNameBytes];
};

/// Written with the first `world` members only.
struct GroupRecord {
    static constexpr RecordType kType = RecordType::kGroupMade;
    std::uint64_t arena;
    std::uint64_t group;
    std::uint64_t block_offset;
    std::uint64_t block_bytes;
    std::uint64_t shrunk_from;  // 0, or the group it takes the place of
    std::uint32_t world;
    std::uint32_t reserved;
    char name[fabricshm::proto::kNameBytes];
    std::uint64_t sessions[fabricshm::proto::kWorldMax];
};
static_assert(offsetof(GroupRecord, sessions) == 48 + fabricshm::proto::kNameBytes);

struct GroupMemberRecord {
    static constexpr RecordType kType = RecordType::kGroupMember;
    std::uint64_t arena;
    std::uint64_t group;
    std::uint32_t rank;
    std::uint32_t state;  // MemberState
};

struct GroupShrunkRecord {
    static constexpr RecordType kType = RecordType::kGroupShrunk;
    std::uint64_t arena;
    std::uint64_t group;
};

struct GroupEndRecord {
    static constexpr RecordType kType = RecordType::kGroupGone;
    std::uint64_t arena;
    std::uint64_t group;
};

/// Bytes that the hardware lost; they stay lost for as long as the arena is.
struct LostRecord {
    static constexpr RecordType kType = RecordType::kLost;
    std::uint64_t arena;
    std::uint64_t offset;
    std::uint64_t bytes;
};

/// The newest one of a shard counts, written after the regions that it names. A copy whose region
/// is free or of another generation is none any more.
struct ShardRecord {
    static constexpr RecordType kType = RecordType::kShard;
    struct Copy {
        std::uint64_t arena;
        std::uint64_t region;  // 0: none
        std::uint64_t generation;
        char device[fabricshm::proto::kNameBytes];
    };
    std::uint64_t arena;
    std::uint64_t region;  // of the header
    std::uint64_t generation;
    std::uint64_t session;
    Copy copies[2];
    std::int64_t shape[fabricshm::proto::kDimsMax];
    std::uint32_t dtype;
    std::uint32_t ndim;
    std::uint32_t current;
    std::uint32_t fixed;
    char name[fabricshm::proto::kNameBytes];
};

/// A session got a line of the shard's header, or gave it back.
struct ShardReaderRecord {
    static constexpr RecordType kType = RecordType::kShardReader;
    std::uint64_t arena;
    std::uint64_t region;
    std::uint64_t session;
    std::uint32_t slot;
    std::uint32_t open;
};

/// Nothing of it is left.
struct ShardEndRecord {
    static constexpr RecordType kType = RecordType::kShardGone;
    std::uint64_t arena;
    std::uint64_t region;
};

/// A quota was changed while the daemon ran; the newest one of a subject counts.
struct QuotaRecord {
    static constexpr RecordType kType = RecordType::kQuota;
    std::uint64_t bytes;       // wanted
    std::uint64_t file_bytes;  // of a device: what the device file said then
    std::int64_t grace_ms;
    char subject[fabricshm::proto::kNameBytes];  // a device, or "user:UID"
};

/// The arena is published; the newest record of an arena counts. Right after its kArenaMade.
struct ArenaPublishedRecord {
    static constexpr RecordType kType = RecordType::kArenaPublished;
    std::uint64_t arena;
    std::uint64_t maker;  // a session; 0: none, or one whose process is known to have ended
    std::int32_t maker_pid;
    std::uint32_t withdrawn;  // 1: no session subscribes any more
    char readers[fabricshm::proto::kReadersBytes];
};

/// A reader's page, and how its file is recognised. It lasts longer than its session when that one
/// was given up while its process may live.
struct PinPageRecord {
    static constexpr RecordType kType = RecordType::kPinPage;
    std::uint64_t arena;
    std::uint64_t number;
    std::uint64_t session;
    std::uint64_t device;  // as in ArenaRecord
    std::uint64_t inode;
    std::uint64_t file_bytes;
    std::uint32_t seals;
    std::int32_t pid;
    std::uint32_t uid;
    std::uint32_t reserved;
};

struct PinPageEndRecord {
    static constexpr RecordType kType = RecordType::kPinPageGone;
    std::uint64_t arena;
    std::uint64_t number;
};

inline constexpr std::size_t kRecordBytesMax = sizeof(GroupRecord);

/// No hole in any of them may carry stray bytes of the daemon's memory into the file.
static_assert(std::has_unique_object_representations_v<StartRecord>);
static_assert(std::has_unique_object_representations_v<SessionRecord>);
static_assert(std::has_unique_object_representations_v<ArenaPublishedRecord>);
static_assert(std::has_unique_object_representations_v<PinPageRecord>);
static_assert(std::has_unique_object_representations_v<SessionHostRecord>);
static_assert(std::has_unique_object_representations_v<ArenaRecord>);
static_assert(std::has_unique_object_representations_v<RegionRecord>);
static_assert(std::has_unique_object_representations_v<TensorRecord>);
static_assert(std::has_unique_object_representations_v<ShardRecord>);
static_assert(std::has_unique_object_representations_v<ShardReaderRecord>);
static_assert(std::has_unique_object_representations_v<GroupRecord>);
static_assert(std::has_unique_object_representations_v<GroupMemberRecord>);

}  // namespace fabricd
