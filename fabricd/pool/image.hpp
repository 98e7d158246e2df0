// PoolImage: what a journal says, as plain data. Read at start, then turned into the registry.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/journal.hpp"

namespace fabricd {

/// What later records of the group have made of it is next to its own record.
struct GroupImage {
    GroupRecord record;
    std::vector<std::uint32_t> states;  // MemberState by rank
    bool shrunk = false;
};

struct ArenaImage {
    ArenaRecord record;
    std::optional<Bytes> committed;  // nothing: all of it
    std::set<SessionId> sessions;
    std::map<RegionId, RegionRecord> regions;  // also free ones: their generation counts
    std::map<RegionId, TensorRecord> tensors;
    std::map<GroupId, GroupImage> groups;
    std::vector<LostRecord> lost;
    std::optional<ArenaPublishedRecord> published;
    std::map<std::uint64_t, PinPageRecord> pin_pages;  // by number
};

struct ShardImage {
    ShardRecord record;
    std::map<SessionId, std::uint32_t> readers;  // their lines
};

struct PoolImage {
    std::uint64_t daemon_epoch = 0;
    std::uint64_t last_id = 0;
    std::map<SessionId, SessionRecord> sessions;
    std::map<SessionId, SessionHostRecord> hosts;  // of `sessions`: those of other hosts
    std::set<SessionId> ending;  // of `sessions`: their end was begun, and is gone through again
    std::map<ArenaId, ArenaImage> arenas;
    std::map<std::string, QuotaRecord> quotas;                  // by subject
    std::map<std::pair<ArenaId, RegionId>, ShardImage> shards;  // by home arena and header
};

/// Of the journal of an owner whose pool this host has taken over: what this host's processes had
/// as those of a guest is its own from now on. `own` is the host as that guest's daemon named it.
/// Not what was given up. How many sessions.
int come_home(PoolImage& image, const Peer& own);

/// What is wrong when every record is sound by itself, but not with the others.
inline constexpr Error kContradiction{Errc::kCorrupt, 0, "restore from journal"};

inline bool ends_with_zero(const char (&field)[fabricshm::proto::kNameBytes]) noexcept {
    return field[sizeof field - 1] == '\0';
}

/// Plays the records. kVersion when the file is of another version; kCorrupt when it is damaged or
/// a record whose CRC is right makes no sense: going on could give memory to two owners.
Result<PoolImage> replay(const JournalContents& contents);

/// The same record by record, for a journal that is read piece by piece.
class Replay {
  public:
    Replay();
    ~Replay();
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

    Result<void> play(const JournalEntry& record);
    /// What they say together; nothing is played afterwards.
    PoolImage take() noexcept;

  private:
    struct Player;
    std::unique_ptr<Player> player_;
};

/// The shortest journal that is replayed to `image`.
Result<void> write_image(const PoolImage& image, JournalSink& sink);

}  // namespace fabricd
