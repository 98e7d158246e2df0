// SnapshotWalk: a snapshot that is taken in pieces, so that no client waits for the whole of it.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/shard.hpp"
#include "fabricd/pool/snapshot.hpp"

namespace fabricd {

/// What there is so far, and the last of each kind that was looked at: ids, so that anything may
/// come and go between two pieces. Used by Registry::look_on() alone.
struct SnapshotWalk {
    SnapshotParts parts;
    Snapshot all = {};

    enum class Stage { kBegin, kSessions, kArenas, kRegions, kGroups, kShards, kDone };
    Stage stage = Stage::kBegin;
    SessionId session = SessionId::kNone;
    ArenaId arena = ArenaId::kNone;     // kRegions, kGroups: the one that is being looked at
    RegionId region = RegionId::kNone;  // in it
    GroupId group = GroupId::kNone;
    ShardId shard = {};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> bad = {};  // its regions with lost bytes
};

}  // namespace fabricd
