// What fabricctl has learned from the daemon: plain data between the client and the views.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// `sessions` counts those that the daemon knows from its journal, too; `sessions_connected` only
/// those that have come back since. Equal: all are there.
struct StatusView {
    std::string version;
    std::int32_t pid = 0;
    std::uint64_t daemon_epoch = 0;
    std::int64_t uptime_ms = 0;
    bool draining = false;
    std::uint64_t sessions = 0;
    std::uint64_t sessions_connected = 0;
    std::uint64_t arenas = 0;
    std::uint64_t regions = 0;
    std::uint64_t groups = 0;
    PoolView pool;
    std::vector<std::string> alarms = {};  // what a person has to see to
    std::vector<CacheView> caches = {};
};

/// A line of the daemon's log.
struct EventView {
    std::uint64_t number = 0;  // rises by one; a gap is what the daemon has forgotten
    std::int64_t unix_ms = 0;
    std::string level;
    std::string text;
};

/// The parts that were asked for; the others are empty.
struct Picture {
    StatusView status;
    std::vector<PoolView> pools;
    std::vector<ArenaView> arenas;
    std::vector<RegionView> regions;
    std::vector<SessionView> sessions;
    std::vector<GroupView> groups;
    std::vector<DeviceView> devices;
    Sample telemetry;
    std::vector<ShardView> shards;
    std::vector<WaitingView> waiting;
};

/// The parts that can be fetched.
enum class View {
    kStatus,
    kPools,
    kArenas,
    kRegions,
    kSessions,
    kGroups,
    kDevices,
    kTop,
    kShards,
    kWaiting
};

}  // namespace fabricd
