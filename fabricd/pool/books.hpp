// Books: what the daemon holds, as plain data: sessions, arenas with what lies in them, shards,
// waits and counts. Every rule about them is a noun's (sessions.hpp, arenas.hpp, regions.hpp, ...).

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/pool/arena.hpp"
#include "fabricd/pool/device.hpp"
#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/quota.hpp"
#include "fabricd/pool/shard.hpp"
#include "fabricd/pool/wait_list.hpp"

namespace fabricd {

using Token = std::array<std::uint8_t, 16>;

/// The process at the other end, as the kernel saw it when it connected: this host's, or that of
/// another host of the pool, whose daemon says so.
struct Peer {
    std::int32_t pid = 0;
    std::uint32_t uid = 0;
    std::uint32_t gid = 0;
    std::string host = {};            // "": this one
    std::uint64_t boot = 0;           // of that host, which its processes do not outlive
    std::uint64_t incarnation = 0;    // of that host in the cluster; 0: none
    std::uint64_t machine = 0;        // of that host: boots of another one prove nothing
    std::uint64_t pid_namespace = 0;  // in which `pid` means something

    bool is_remote() const noexcept { return !host.empty(); }
    /// Whether the daemon that speaks for `other` sees this one's process as well.
    bool is_seen_with(const Peer& other) const noexcept {
        return host == other.host && machine == other.machine && boot == other.boot &&
               pid_namespace == other.pid_namespace;
    }
};

/// What for a session is back: see Registry::resume_session().
enum class ComeBack { kToGoOn, kToLeave };

/// See Registry::end_session().
enum class SessionEnd { kEnded, kGivenUp, kLeftInCaches, kMayLive };

/// Where in the pool's device an arena lies that a session has open.
struct OpenRange {
    ArenaId arena = ArenaId::kNone;
    std::uint64_t offset = 0;
    Bytes bytes = 0;
    auto operator<=>(const OpenRange&) const = default;
};

/// A session of another host, for what has to be known of its process.
struct RemoteSession {
    SessionId id = SessionId::kNone;
    Peer peer;
    bool given_up = false;
    std::vector<OpenRange> ranges = {};  // that it may have written to
};

/// One process that is connected, or may be again. Plain data, as Arena.
struct Session {
    SessionId id = SessionId::kNone;
    Token token{};
    Peer peer;
    std::string label;
    std::string device;
    TimePoint since;
    bool connected = false;
    bool ending = false;   // it has begun, and goes on in pieces
    TimePoint lost_until;  // when not connected
    // Of another host that is silent: its ranks count as dead, and what it holds is kept from all
    // until it is known that the process writes no more.
    bool given_up = false;
    std::set<ArenaId> arenas;
    std::vector<std::uint32_t> groups;  // of its user; known of one that has subscribed
    int pin_pages = 0;                  // that it ever got
    bool may_live = false;              // it ends for want of a sign of life: its process may go on
    int regions = 0;
    Bytes bytes_owned = 0;
    Bytes bytes_denied = 0;
};

/// The request to answer when an arena has been left: nothing when its connection is gone.
using Leaving = std::map<std::pair<SessionId, ArenaId>, std::optional<Ticket>>;

/// Used by the control thread only. What find_*() return, and the references, hold until the object
/// is erased.
struct Books {
    Books(const Limits& all, const std::vector<DeviceSpec>& specs)
        : limits(all), users(all), devices(specs) {}

    Session* find_session(SessionId id);
    Arena* find_arena(ArenaId id);
    Shard* find_shard(ShardId id);
    const Session* find_session(SessionId id) const;
    const Arena* find_arena(ArenaId id) const;
    const Shard* find_shard(ShardId id) const;

    /// Of an id that another entry holds: that it is there is checked, since without it the entries
    /// contradict each other.
    Session& session(SessionId id);
    Arena& arena(ArenaId id);
    Shard& shard(ShardId id);
    const Session& session(SessionId id) const;
    const Arena& arena(ArenaId id) const;
    const Shard& shard(ShardId id) const;

    /// An arena that the session has not opened does not exist for it, whatever user it belongs to.
    Result<Arena*> arena_of(SessionId session, ArenaId arena);
    /// The same, but for a reader of a published arena: what is made there is its maker's.
    Result<Arena*> arena_written_by(SessionId session, ArenaId arena);
    /// As arena_of(), for a stranger to it, too: see Dangers.
    Result<Arena*> arena_held_by(SessionId session, ArenaId arena);

    bool is_ending(SessionId session) const { return ending.count(session) != 0; }
    bool is_leaving(SessionId session, ArenaId arena) const {
        return leaving.count({session, arena}) != 0;
    }
    /// Whether all sessions that have it open are about to be gone: an open of its name makes a
    /// new one.
    bool is_being_left(const Arena& arena) const;

    std::uint64_t next_id() noexcept { return ++last_id; }

    /// What can't be true at any time: two owners of one byte, miscounted sessions. Empty when all
    /// is well.
    std::vector<std::string> contradictions() const;
    /// These, and what a daemon that was not killed in the middle has none of; for tests.
    std::vector<std::string> problems() const;

    Limits limits;
    QuotaTable users;  // what each holds, and may hold
    DeviceTable devices;
    std::map<SessionId, Session> sessions;
    std::map<ArenaId, Arena> arenas;
    std::map<std::string, ArenaId> arena_names;
    std::map<ShardId, Shard> shards;
    WaitList waits;

    std::set<std::pair<TimePoint, SessionId>> lost;  // not connected, by when to give up
    std::set<SessionId> remote;                      // of other hosts
    std::set<SessionId> ending;                      // whose end goes on in the next turn
    Leaving leaving;                                 // by live sessions, in pieces
    std::set<ArenaId> freeing;                       // that have something in Arena::freeing
    std::set<ShardId> loose_shards;  // retired, or with two copies: something may be free soon

    std::map<std::uint32_t, int> pin_pages;  // in force, by user

    std::uint64_t daemon_epoch = 1;
    std::uint64_t last_id = 0;
    Duration grace = std::chrono::seconds(10);  // to come back in
    bool draining = false;                      // nothing new begins
    bool caches_apart = false;                  // see Registry::Parts
};

}  // namespace fabricd
