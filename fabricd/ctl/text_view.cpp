#include <pwd.h>

#include <algorithm>
#include <cstdio>

#include "fabricd/ctl/table.hpp"
#include "fabricd/ctl/telemetry_view.hpp"
#include "fabricd/ctl/views.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

namespace {

using fabricshm::format_bytes;
constexpr auto kLeft = Table::Align::kLeft;

std::string age(std::int64_t milliseconds) {
    return fabricshm::format_duration(std::chrono::milliseconds(milliseconds));
}

// Rounded down: 100 % is said of what is full and of nothing else.
std::string share(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? "-" : std::to_string(part * 100 / whole) + " %";
}

std::string digits(std::uint64_t value) {
    return std::to_string(value);
}

std::string text_of(ViewState auto state) {
    return std::string(name_of(state));
}

// One fact per line, for people and for `grep memory`. "start" is the daemon epoch: it
// distinguishes two daemons that had the same process number.
std::string status_text(const StatusView& status) {
    const auto& pool = status.pool;
    std::string sessions = digits(status.sessions);
    if (status.sessions_connected != status.sessions) {
        sessions += " (" + digits(status.sessions - status.sessions_connected) +
                    " not back yet after a restart)";
    }
    std::string text;
    text += "fabricd   " + status.version + ", " + (status.draining ? "draining" : "serving") +
            ", pid " + std::to_string(status.pid) + ", up " + age(status.uptime_ms) + ", start " +
            digits(status.daemon_epoch) + "\n";
    text += "pool      " + pool.backend + ": " + pool.description + "\n";
    if (!pool.machine.empty()) text += "emulates  " + pool.machine + "\n";
    text += "memory    " + format_bytes(pool.used_bytes) + " of " +
            format_bytes(pool.capacity_bytes) + " (" + share(pool.used_bytes, pool.capacity_bytes) +
            ")\n";
    text += "sessions  " + sessions + "\n";
    text += "arenas    " + digits(status.arenas) + "\n";
    text += "regions   " + digits(status.regions) + "\n";
    text += "groups    " + digits(status.groups) + "\n";
    for (const CacheView& cache : status.caches) {
        char stall[32];
        std::snprintf(stall, sizeof stall, "%.1f s", static_cast<double>(cache.stall_ns) * 1e-9);
        text += "cache     " + cache.name + ": " + format_bytes(cache.bytes_committed) + " of " +
                format_bytes(cache.quota_bytes) + ", " + digits(cache.readers) +
                " readers waited " + stall + ", " + format_bytes(cache.bytes_refetched) +
                " fetched again\n";
    }
    for (const std::string& alarm : status.alarms) text += "ALARM     " + alarm + "\n";
    return text;
}

std::string pools_text(const Picture& picture) {
    Table table({{"POOL"},
                 {"CAPACITY", kRight},
                 {"USED", kRight},
                 {"SHARE", kRight},
                 {"WHERE"},
                 {"EMULATES"}});
    for (const auto& pool : picture.pools) {
        table.add({pool.backend, format_bytes(pool.capacity_bytes), format_bytes(pool.used_bytes),
                   share(pool.used_bytes, pool.capacity_bytes), pool.description,
                   pool.machine.empty() ? "-" : pool.machine});
    }
    return table.text();
}

// COMMITTED is what the arena has taken from the pool so far; it grows up to SIZE. QUARANTINED is
// what dead sessions left behind while groups may still read it: part of USED, and free again by
// itself when the groups are gone.
std::string arenas_text(const Picture& picture) {
    Table table({{"ARENA", kRight},
                 {"NAME"},
                 {"USER"},
                 {"SIZE", kRight},
                 {"COMMITTED", kRight},
                 {"USED", kRight},
                 {"SHARE", kRight},
                 {"QUARANTINED", kRight},
                 {"SESSIONS", kRight}});
    for (const auto& arena : picture.arenas) {
        table.add({digits(arena.id), arena.name, user_name(arena.uid), format_bytes(arena.bytes),
                   format_bytes(arena.bytes_committed), format_bytes(arena.bytes_used),
                   share(arena.bytes_used, arena.bytes), format_bytes(arena.bytes_quarantined),
                   digits(arena.sessions)});
    }
    return table.text();
}

// OFFSET in bytes from the arena's start, as the library has it: people compare it with the offsets
// of error messages.
std::string regions_text(const Picture& picture) {
    Table table({{"ARENA", kRight},
                 {"REGION", kRight},
                 {"GENERATION", kRight},
                 {"OFFSET", kRight},
                 {"SIZE", kRight},
                 {"SESSION", kRight},
                 {"STATE"},
                 {"TENSOR"}});
    for (const auto& region : picture.regions) {
        table.add({digits(region.arena_id), digits(region.id), digits(region.generation),
                   digits(region.offset), format_bytes(region.bytes), digits(region.owner_session),
                   text_of(region.state), region.tensor_name.empty() ? "-" : region.tensor_name});
    }
    return table.text();
}

// OWNS counts regions, whichever session maps them. "awaited": from the journal, and given up when
// the daemon's grace (state.adopt_grace) is over. "given-up": of another host that is silent.
std::string sessions_text(const Picture& picture) {
    Table table({{"SESSION", kRight},
                 {"PID", kRight},
                 {"USER"},
                 {"AGE", kRight},
                 {"OWNS", kRight},
                 {"STATE"},
                 {"DEVICE"},
                 {"HOST"},
                 {"LABEL"}});
    for (const auto& session : picture.sessions) {
        table.add({digits(session.id), std::to_string(session.pid), user_name(session.uid),
                   age(session.age_ms), format_bytes(session.bytes_owned),
                   session.connected  ? "connected"
                   : session.given_up ? "given-up"
                                      : "awaited",
                   session.device.empty() ? "-" : session.device,
                   session.host.empty() ? "-" : session.host, session.label});
    }
    return table.text();
}

// In one cell without blanks, for cut and awk.
std::string dead_ranks(const GroupView& group) {
    std::string text;
    for (const auto rank : group.dead_ranks) {
        text += (text.empty() ? "" : ",") + std::to_string(rank);
    }
    return text.empty() ? "-" : text;
}

// EPOCH rises when a group of the same name is made again. A group with dead ranks is broken for
// good: its survivors make a smaller one.
std::string groups_text(const Picture& picture) {
    Table table({{"ARENA", kRight},
                 {"GROUP", kRight},
                 {"NAME"},
                 {"EPOCH", kRight},
                 {"JOINED", kRight},
                 {"STATE"},
                 {"DEAD RANKS"}});
    for (const auto& group : picture.groups) {
        table.add({digits(group.arena_id), digits(group.id), group.name, digits(group.epoch),
                   std::to_string(group.joined) + "/" + std::to_string(group.world),
                   text_of(group.state), dead_ranks(group)});
    }
    return table.text();
}

// As the device file has it: 12.5 stays 12.5, and whole numbers grow no zeros.
std::string decimal(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

// "removed": it is no longer in the device file, and sessions still compute on it.
std::string state_of(const DeviceView& device) {
    if (!device.configured) return "removed";
    if (!device.faults.empty()) return "faulty: " + device.faults;
    return device.sessions != 0 ? "attached" : "idle";
}

// A quota that shrinks, and to what.
std::string quota_of(const DeviceView& device) {
    const std::string now = format_bytes(device.spec.quota_bytes);
    const bool shrinking = device.quota_left_ms != 0;
    return shrinking ? now + " > " + format_bytes(device.quota_target_bytes) : now;
}

// Speed and link are those of the whole device, as the file has them; VGPU is the share of the
// speed that is ours, and SHARE the part of the quota in use.
std::string devices_text(const Picture& picture) {
    Table table({{"DEVICE"},
                 {"KIND"},
                 {"GFLOP/S", kRight},
                 {"VGPU", kRight},
                 {"MEMORY", kRight},
                 {"QUOTA", kRight},
                 {"USED", kRight},
                 {"SHARE", kRight},
                 {"LINK GB/S", kRight},
                 {"LATENCY", kRight},
                 {"SESSIONS", kRight},
                 {"STATE"}});
    for (const auto& device : picture.devices) {
        const DeviceSpec& spec = device.spec;
        table.add({spec.name, spec.kind.empty() ? "-" : spec.kind, decimal(spec.gflops),
                   std::to_string(spec.share_percent) + " %", format_bytes(spec.memory_bytes),
                   quota_of(device), format_bytes(device.bytes_used),
                   share(device.bytes_used, spec.quota_bytes), decimal(spec.link_gbytes_per_s),
                   fabricshm::format_duration(std::chrono::nanoseconds(spec.link_latency_ns)),
                   digits(device.sessions), state_of(device)});
    }
    return table.text();
}

// DEVICE is whose quota counts the shard, SESSION its owner, which alone may write to it.
std::string shards_text(const Picture& picture) {
    Table table({{"SHARD"},
                 {"SIZE", kRight},
                 {"ARENA"},
                 {"OFFSET", kRight},
                 {"DEVICE"},
                 {"SESSION", kRight},
                 {"READERS", kRight},
                 {"MOVES", kRight},
                 {"STATE"}});
    for (const auto& shard : picture.shards) {
        const bool moving = shard.state == ShardState::kMoving;
        table.add(
            {shard.name, format_bytes(shard.bytes), shard.home_arena, digits(shard.offset),
             shard.home_device.empty() ? "-" : shard.home_device, digits(shard.owner_session),
             digits(shard.readers), digits(shard.moves),
             text_of(shard.state) + (moving ? " " + share(shard.moved_bytes, shard.bytes) : "")});
    }
    return table.text();
}

// "0,2-5": in one cell without blanks, for cut and awk.
std::string ranges_of(const std::vector<std::int32_t>& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size();) {
        std::size_t last = i;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
        text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
        if (last != i) text += "-" + std::to_string(ranks[last]);
        i = last + 1;
    }
    return text.empty() ? "-" : text;
}

// The number alone where the ranks are not known: those of a group that is forming may be given by
// the daemon.
std::string late_of(const WaitingView& row) {
    std::vector<std::int32_t> ranks;
    for (const LateRank& late : row.late) ranks.push_back(late.rank);
    if (ranks.empty()) return std::to_string(row.late_count) + " of " + std::to_string(row.world);
    return ranges_of(ranks);
}

// The processes of those that are late, as `kill` and a debugger want them; "-": they have none
// here.
std::string late_pids(const WaitingView& row) {
    std::string text;
    for (const LateRank& late : row.late) {
        if (late.pid == 0) continue;
        text += (text.empty() ? "" : ",") + std::to_string(late.pid);
    }
    return text.empty() ? "-" : text;
}

// SIZE is that of the largest part, and 0 of a barrier. WAITED is of the rank that waits longest;
// the rows come in that order, so that what began it all is at the top.
std::string waiting_text(const Picture& picture) {
    Table table({{"ARENA"},
                 {"GROUP"},
                 {"OPERATION"},
                 {"SIZE", kRight},
                 {"WAITED", kRight},
                 {"RANKS WAITING"},
                 {"RANKS LATE"},
                 {"PIDS LATE"}});
    for (const auto& row : picture.waiting) {
        table.add({row.arena, row.group, row.operation, format_bytes(row.bytes), age(row.waited_ms),
                   ranges_of(row.waiting), late_of(row), late_pids(row)});
    }
    return table.text();
}

/// The largest first, so that what fills the pool is on the screen.
/// A copy of the picture, since it is sorted; the other views keep the daemon's order.
std::string top_text(Picture picture) {
    std::sort(picture.arenas.begin(), picture.arenas.end(),
              [](const ArenaView& a, const ArenaView& b) { return a.bytes > b.bytes; });
    std::sort(
        picture.sessions.begin(), picture.sessions.end(),
        [](const SessionView& a, const SessionView& b) { return a.bytes_owned > b.bytes_owned; });
    return status_text(picture.status) + telemetry_text(picture.telemetry) + "\nArenas:\n" +
           arenas_text(picture) + "\nSessions:\n" + sessions_text(picture) + "\nGroups:\n" +
           groups_text(picture);
}

}  // namespace

// For the sake of hosts whose users come from a directory that is not there now: the number always
// works.
std::string user_name(std::uint32_t uid) {
    const ::passwd* found = ::getpwuid(uid);  // fabricctl prints on one thread
    return found != nullptr ? found->pw_name : std::to_string(uid);
}

std::string text_view(const Picture& picture, View view) {
    switch (view) {
        case View::kStatus:
            return status_text(picture.status);
        case View::kPools:
            return pools_text(picture);
        case View::kArenas:
            return arenas_text(picture);
        case View::kRegions:
            return regions_text(picture);
        case View::kSessions:
            return sessions_text(picture);
        case View::kGroups:
            return groups_text(picture);
        case View::kDevices:
            return devices_text(picture);
        case View::kShards:
            return shards_text(picture);
        case View::kWaiting:
            return waiting_text(picture);
        case View::kTop:
            return top_text(picture);
    }
    return "";
}

}  // namespace fabricd
