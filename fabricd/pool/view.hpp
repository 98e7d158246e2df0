// View: what the daemon shows to people, to the control loop and to the sessions' own accounts.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/pool/snapshot_walk.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricd {

/// What the session said of itself when it came: empty for one that is not there.
struct SessionNames {
    std::string label;
    std::string device;
};
SessionNames names_of(const Books& books, SessionId session);

/// What is on record of a session that claims to be `rank` of a group. `member` is false for a
/// claim that is not true.
struct SessionAccount {
    bool member = false;
    Bytes owned = 0;   // of its regions, now
    Bytes denied = 0;  // asked for and refused, since the daemon started
};
SessionAccount account_of(const Books& books, SessionId session, ArenaId arena, GroupId group,
                          int rank);

std::optional<ShardId> shard_named(const Books& books, const std::string& name);  // "ARENA/NAME"
ShardView view_of(const Books& books, const Shard& shard);

/// Sessions, arenas, regions and groups; the caller fills in the pool and the uptime.
Snapshot snapshot(const Books& books, TimePoint now);
/// The same in pieces of about `most` objects each: true when it is all there. What lives all the
/// while is in it once; totals and devices are of the first piece.
bool look_on(const Books& books, SnapshotWalk& walk, int most, TimePoint now);
Places places(const Books& books, const std::vector<ShardId>& wanted, TimePoint now);

/// See Registry::waiting().
std::vector<WaitingView> waiting(const Books& books,
                                 const std::vector<fabricshm::SessionWait>& shown, TimePoint now);

}  // namespace fabricd
