// Between the daemon's plain data and the messages of admin.proto, in both directions: the server
// packs, fabricctl unpacks.

#pragma once

#include <cstdint>
#include <string>

#include "admin.pb.h"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/telemetry/sample.hpp"

namespace fabricd {

/// protobuf refuses text that is not UTF-8, and labels come from clients: other bytes become '?'.
std::string printable(const std::string& text);

/// What a status says besides the snapshot.
struct DaemonFacts {
    std::string version;
    std::int32_t pid = 0;
};

/// Texts that clients chose are printable in a message, since protobuf refuses others; every
/// unpack() takes what the daemon sent as it is, since only the daemon's own user and root can
/// serve that socket. Pure and thread-safe.
void pack(const PoolView& view, admin::v1::Pool& message);
void pack(const ArenaView& view, admin::v1::Arena& message);
void pack(const CacheView& view, admin::v1::Cache& message);
void pack(const RegionView& view, admin::v1::Region& message);
void pack(const SessionView& view, admin::v1::Session& message);
void pack(const GroupView& view, admin::v1::Group& message);
void pack(const DeviceView& view, admin::v1::Device& message);
void pack(const ShardView& view, admin::v1::Shard& message);
void pack(const WaitingView& view, admin::v1::Waiting& message);
void pack_status(const Snapshot& snapshot, const DaemonFacts& facts,
                 admin::v1::StatusReply& message);

/// `with_regions`: there may be a million of them, and most watchers don't look.
void pack_watch(const Snapshot& snapshot, const DaemonFacts& facts, bool with_regions,
                admin::v1::WatchReply& message);

PoolView unpack(const admin::v1::Pool& message);
ArenaView unpack(const admin::v1::Arena& message);
CacheView unpack(const admin::v1::Cache& message);
RegionView unpack(const admin::v1::Region& message);
SessionView unpack(const admin::v1::Session& message);
GroupView unpack(const admin::v1::Group& message);
DeviceView unpack(const admin::v1::Device& message);
ShardView unpack(const admin::v1::Shard& message);
WaitingView unpack(const admin::v1::Waiting& message);

/// Sessions with their rates, devices and paths; counters and arrays stay with the daemon.
void pack(const Sample& sample, admin::v1::Telemetry& message);
Sample unpack(const admin::v1::Telemetry& message);

}  // namespace fabricd
