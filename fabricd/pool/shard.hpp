// Shard: a named tensor that can move while it is read, as the daemon keeps it. docs/migration.md.

#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "fabricd/pool/arena.hpp"
#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/ids.hpp"
#include "libfabricshm/shm/shard_header.hpp"

namespace fabricd {

/// The arena and the region of its header, which stay for as long as the shard does.
struct ShardId {
    ArenaId arena = ArenaId::kNone;
    RegionId header = RegionId::kNone;
    auto operator<=>(const ShardId&) const = default;
};

/// The header of a shard, in the pages of its region.
inline fabricshm::ShardHeader& header_in(const ArenaSpan& span) {
    return *reinterpret_cast<fabricshm::ShardHeader*>(span.data);
}

/// One copy of the elements: a region of the shard's owner, in any arena that the owner has open.
struct ShardCopy {
    ArenaId arena = ArenaId::kNone;
    RegionId region = RegionId::kNone;
    std::uint64_t generation = 0;
};

/// Where a shard is to go: text for people is taken apart into this.
struct MoveTarget {
    ArenaId arena = ArenaId::kNone;     // kNone: the one that it is in
    std::optional<std::string> device;  // whose quota counts it; nothing: as before
    int node = -1;                      // NUMA node of the pages; -1: wherever they are
};

/// Shared with the thread that copies.
struct CopyProgress {
    std::atomic<Bytes> done{0};
    std::atomic<bool> cancelled{false};
};

/// One copy to be made, outside the control thread. The spans keep their mappings alive.
struct CopyJob {
    ShardId shard;
    ArenaSpan header;  // of the ShardHeader: its word is read before the first byte is
    ArenaSpan from;
    ArenaSpan to;
    Bytes bytes = 0;
    Bytes bytes_per_second = 0;  // 0: no limit
    int node = -1;
    std::shared_ptr<CopyProgress> progress;
};

/// What makes copies. The result comes back through Registry::shard_copied(): the word as it was
/// before the copy, or why there is none.
class CopyWork {
  public:
    virtual ~CopyWork() = default;
    virtual void copy(CopyJob job) = 0;
    /// Whether this host has memory on that NUMA node.
    virtual bool knows_node(int) const { return true; }
};

/// Called once with how a move ended, on the control thread.
using MoveDone = std::function<void(const Result<void>&)>;

struct ShardMove {
    MoveTarget target;
    Bytes bytes_per_second = 0;
    int attempts = 0;  // copies begun
    std::shared_ptr<CopyProgress> progress;
    MoveDone done;
};

struct ShardReaderBook {
    int slot = 0;
    int opens = 0;
    // From the journal, which does not count: the line is kept until the session leaves the arena.
    bool recovered = false;
};

/// Plain data: the rules about it are in shards.hpp and moves.hpp. Used by the control thread
/// only.
struct Shard {
    ShardId id;
    std::uint64_t generation = 0;  // of the header's region
    SessionId owner = SessionId::kNone;
    TensorInfo info;
    Bytes bytes = 0;
    bool fixed = false;    // its owner's memory is not coherent with ours
    bool retired = false;  // its owner freed it or is gone; the bytes wait for their last readers
    // Its owner left the arena or died: peers may still be storing into what they knew as its
    // memory, as with any region of a dead session.
    bool abandoned = false;
    bool recovered = false;
    // False from a restart until its arena is back: only the word in it says which copy is valid.
    bool settled = true;

    // At most two. copies[current] is the valid one; another one that no move is filling is left
    // over, and goes when no session reads it any more.
    std::optional<ShardCopy> copies[2];
    int current = 0;
    std::map<SessionId, ShardReaderBook> readers;
    std::optional<ShardMove> move;
    std::uint64_t moves = 0;  // since this daemon started
};

}  // namespace fabricd
