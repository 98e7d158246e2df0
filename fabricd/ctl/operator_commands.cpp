#include "fabricd/ctl/operator_commands.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <set>
#include <thread>

#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/views.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr int kAsked = 5;
constexpr double kNearlyFull = 0.95;

double seconds_since(fabricshm::TimePoint began) {
    return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string time_text(std::int64_t unix_ms) {
    const std::time_t seconds = unix_ms / 1000;
    std::tm parts{};
    ::localtime_r(&seconds, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
    char all[48];
    std::snprintf(all, sizeof all, "%s.%03d", text, static_cast<int>(unix_ms % 1000));
    return all;
}

// In the order in which an operator has to act: one that drains it knows that it is nearly empty or
// full.
std::string health_of(const StatusView& status, const std::vector<DeviceView>& devices) {
    if (!status.alarms.empty()) return status.alarms.front();
    if (status.draining) return "draining";
    for (const DeviceView& device : devices) {
        // Heat makes it slower, and no more.
        if (device.faults.empty() || device.faults == "thermal") continue;
        return "device " + device.spec.name + " is faulty: " + device.faults;
    }
    const auto& pool = status.pool;
    const bool full = static_cast<double>(pool.used_bytes) >=
                      kNearlyFull * static_cast<double>(pool.capacity_bytes);
    return full ? "the pool is nearly full" : "ok";
}

// 0, which is no id, for a text that is no number: names and ids are asked for alike.
std::uint64_t number_of(const std::string& text) {
    std::uint64_t number = 0;
    const auto [stop, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
    return bad == std::errc{} && stop == text.data() + text.size() ? number : 0;
}

// ---- Inspect -----------------------------------------------------------------------------------

template <typename Items, typename Keep>
void keep_if(Items& items, Keep keep) {
    std::erase_if(items, [&](const auto& item) { return !keep(item); });
}

/// What `picture` has of `subject`: by id, by name, and by the process id of a session. Of an arena
/// that matches its sessions, groups and shards come along; of a session its regions and arenas.
void keep_matching(Picture& picture, const std::string& subject) {
    const std::uint64_t id = number_of(subject);
    const auto named = [&](std::uint64_t own, const std::string& name) {
        return (id != 0 && own == id) || name == subject;
    };
    const auto is_subject = [&](const SessionView& session) {
        return named(session.id, session.label) || (id != 0 && std::cmp_equal(session.pid, id));
    };
    // Those of an arena that is the subject are shown with it, and nothing else of theirs.
    std::set<std::uint64_t> subjects, shown;
    for (const SessionView& session : picture.sessions) {
        if (is_subject(session)) subjects.insert(session.id);
    }
    for (const ArenaView& arena : picture.arenas) {
        if (named(arena.id, arena.name)) {
            shown.insert(arena.session_ids.begin(), arena.session_ids.end());
        }
    }
    keep_if(picture.sessions, [&](const SessionView& session) {
        return subjects.contains(session.id) || shown.contains(session.id);
    });
    const auto has_session = [&](std::uint64_t session) { return subjects.contains(session); };
    keep_if(picture.arenas, [&](const ArenaView& arena) {
        return named(arena.id, arena.name) ||
               std::any_of(arena.session_ids.begin(), arena.session_ids.end(), has_session);
    });
    const auto is_arena = [&](std::uint64_t arena) {
        return std::any_of(picture.arenas.begin(), picture.arenas.end(), [&](const ArenaView& own) {
            return own.id == arena && named(own.id, own.name);
        });
    };
    keep_if(picture.groups, [&](const GroupView& group) {
        return named(group.id, group.name) || is_arena(group.arena_id);
    });
    keep_if(picture.regions, [&](const RegionView& region) {
        return named(region.id, region.tensor_name) || has_session(region.owner_session) ||
               is_arena(region.arena_id);
    });
    keep_if(picture.shards, [&](const ShardView& shard) {
        return named(shard.id, shard.name) || has_session(shard.owner_session) ||
               is_arena(shard.arena_id);
    });
    keep_if(picture.devices, [&](const DeviceView& device) { return device.spec.name == subject; });
}

struct Part {
    View view;
    const char* name;
    bool any;
};

std::vector<Part> parts_of(const Picture& picture) {
    std::vector<Part> parts{{View::kSessions, "sessions", !picture.sessions.empty()},
                            {View::kArenas, "arenas", !picture.arenas.empty()},
                            {View::kGroups, "groups", !picture.groups.empty()},
                            {View::kRegions, "regions", !picture.regions.empty()},
                            {View::kShards, "shards", !picture.shards.empty()},
                            {View::kDevices, "devices", !picture.devices.empty()}};
    std::erase_if(parts, [](const Part& part) { return !part.any; });
    return parts;
}

// One call after the other: the parts are of moments that follow each other, which is near enough
// to inspect one thing.
Result<Picture> fetch_all(AdminClient& client) {
    Picture all;
    FABRIC_TRY(Picture sessions, client.fetch(View::kSessions, 0));
    FABRIC_TRY(Picture arenas, client.fetch(View::kArenas, 0));
    FABRIC_TRY(Picture groups, client.fetch(View::kGroups, 0));
    FABRIC_TRY(Picture regions, client.fetch(View::kRegions, 0));
    FABRIC_TRY(Picture shards, client.fetch(View::kShards, 0));
    FABRIC_TRY(Picture devices, client.fetch(View::kDevices, 0));
    all.sessions = std::move(sessions.sessions);
    all.arenas = std::move(arenas.arenas);
    all.groups = std::move(groups.groups);
    all.regions = std::move(regions.regions);
    all.shards = std::move(shards.shards);
    all.devices = std::move(devices.devices);
    return all;
}

// ---- Evict -------------------------------------------------------------------------------------

Result<std::vector<SessionView>> sessions_of(AdminClient& client) {
    FABRIC_TRY(Picture picture, client.fetch(View::kSessions, 0));
    return std::move(picture.sessions);
}

/// The session `17`, or the sessions of `arena:NAME` or `arena:ID`.
Result<std::vector<SessionView>> victims_of(const std::string& subject, AdminClient& client) {
    FABRIC_TRY(auto sessions, sessions_of(client));
    std::vector<std::uint64_t> wanted{number_of(subject)};
    if (subject.starts_with("arena:")) {
        const std::string name = subject.substr(6);
        FABRIC_TRY(const Picture picture, client.fetch(View::kArenas, 0));
        const auto arena =
            std::find_if(picture.arenas.begin(), picture.arenas.end(), [&](const ArenaView& each) {
                return each.name == name || (each.id == number_of(name) && each.id != 0);
            });
        if (arena == picture.arenas.end()) {
            return fabricshm::explain({Errc::kNotFound, 0, "evict"},
                                      "there is no arena '%s' (fabricctl arenas lists them)",
                                      name.c_str());
        }
        wanted = arena->session_ids;
    }
    keep_if(sessions, [&](const SessionView& session) {
        return std::find(wanted.begin(), wanted.end(), session.id) != wanted.end();
    });
    if (!sessions.empty()) return sessions;
    return fabricshm::explain({Errc::kNotFound, 0, "evict"},
                              "there is no session '%s' (fabricctl sessions lists them; of an "
                              "arena: arena:NAME)",
                              subject.c_str());
}

Result<void> send_signal(const SessionView& session, const Fd& pidfd, int number) {
    if (::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0) == 0) return {};
    if (errno == ESRCH) return {};
    return fabricshm::explain(fabricshm::error_from_errno(errno, "evict"),
                              "may not end process %d of %s: run fabricctl as that user or as root",
                              session.pid, user_name(session.uid).c_str());
}

bool ends_within(const Fd& pidfd, double seconds) {
    const auto length = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
    const auto deadline = fabricshm::deadline_after(Clock::now(), length);
    return fabricshm::wait_ready(pidfd.get(), POLLIN, deadline, "wait for the process").ok();
}

/// True when it took SIGKILL.
Result<bool> end_process(const SessionView& session, double grace, AdminClient& client) {
    auto pidfd = fabricshm::open_pidfd(session.pid);
    if (!pidfd.ok()) return false;  // it has ended by itself
    // After the descriptor is open: the daemon sees a death at once, so a session that is still
    // there belongs to this process, and not to one that has got its number since.
    FABRIC_TRY(const auto now, sessions_of(client));
    const bool still = std::any_of(now.begin(), now.end(), [&](const SessionView& each) {
        return each.id == session.id && each.pid == session.pid;
    });
    if (!still) return false;
    FABRIC_TRY_VOID(send_signal(session, *pidfd, SIGTERM));
    if (ends_within(*pidfd, grace)) return false;
    FABRIC_TRY_VOID(send_signal(session, *pidfd, SIGKILL));
    if (!ends_within(*pidfd, 10.0)) {
        return Error{Errc::kTimeout, 0, "wait for the process to end"};
    }
    return true;
}

}  // namespace

Result<void> show_health(const CtlOptions& options, AdminClient& client) {
    std::vector<double> took;
    StatusView status;
    for (int i = 0; i < kAsked; ++i) {
        const auto began = Clock::now();
        FABRIC_TRY(const Picture picture, client.fetch(View::kStatus, 0));
        took.push_back(seconds_since(began));
        status = picture.status;
    }
    // The first one makes the connection as well.
    std::sort(took.begin() + 1, took.end());
    FABRIC_TRY(const Picture devices, client.fetch(View::kDevices, 0));
    const std::string health = health_of(status, devices.devices);
    const double median_ms = took[kAsked / 2 + 1] * 1e3;
    if (options.json) {
        std::printf("%s\n", one_line({{"health", health},
                                      {"round_trip_ms", median_ms},
                                      {"round_trip_most_ms", took.back() * 1e3},
                                      {"first_ms", took.front() * 1e3},
                                      {"uptime_ms", status.uptime_ms},
                                      {"draining", status.draining},
                                      {"sessions", status.sessions},
                                      {"pool_capacity_bytes", status.pool.capacity_bytes},
                                      {"pool_used_bytes", status.pool.used_bytes}})
                                .c_str());
    } else {
        std::printf(
            "%s: fabricd %s, pid %d, round trip %.2f ms (most %.2f, first %.2f), %s of %s used, "
            "%llu sessions\n",
            health.c_str(), status.version.c_str(), status.pid, median_ms, took.back() * 1e3,
            took.front() * 1e3, fabricshm::format_bytes(status.pool.used_bytes).c_str(),
            fabricshm::format_bytes(status.pool.capacity_bytes).c_str(),
            static_cast<unsigned long long>(status.sessions));
    }
    if (health == "ok") return {};
    return fabricshm::explain({Errc::kBusy, 0, "health"}, "not well: %s", health.c_str());
}

Json json_of(const std::vector<EventView>& events) {
    Json list = Json::array();
    for (const EventView& event : events) {
        list.push_back({{"number", event.number},
                        {"unix_ms", event.unix_ms},
                        {"level", event.level},
                        {"text", event.text}});
    }
    return {{"events", list}};
}

Result<void> show_events(const CtlOptions& options, AdminClient& client) {
    const auto last = static_cast<std::uint32_t>(std::min<std::size_t>(options.last, UINT32_MAX));
    FABRIC_TRY(const auto events, client.events(last));
    if (options.json) {
        std::printf("%s\n", one_line(json_of(events)).c_str());
        return {};
    }
    for (const EventView& event : events) {
        std::printf("%s %s: %s\n", time_text(event.unix_ms).c_str(), event.level.c_str(),
                    event.text.c_str());
    }
    return {};
}

Result<void> inspect(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(Picture picture, fetch_all(client));
    keep_matching(picture, options.subject);
    const auto parts = parts_of(picture);
    if (parts.empty()) {
        return fabricshm::explain({Errc::kNotFound, 0, "inspect"},
                                  "nothing has the id or name '%s'", options.subject.c_str());
    }
    Json all = Json::object();
    for (const Part& part : parts) {
        if (!options.json) {
            std::printf("%s\n%s\n", part.name, text_view(picture, part.view).c_str());
            continue;
        }
        const Json one = Json::parse(json_view(picture, part.view), nullptr, false);
        if (one.is_object()) all[part.name] = one.value(part.name, Json::array());
    }
    if (options.json) std::printf("%s\n", one_line({{"inspect", all}}).c_str());
    return {};
}

Result<void> evict(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(const auto victims, victims_of(options.subject, client));
    Json list = Json::array();
    for (const SessionView& session : victims) {
        FABRIC_TRY(const bool killed, end_process(session, options.grace, client));
        list.push_back({{"session", session.id}, {"pid", session.pid}, {"killed", killed}});
        if (options.json) continue;
        std::printf("session %llu (pid %d, %s) %s\n", static_cast<unsigned long long>(session.id),
                    session.pid, session.label.c_str(), killed ? "was killed" : "has ended");
    }
    // The daemon hears of a death by itself, a moment later.
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    for (;;) {
        FABRIC_TRY(const auto left, sessions_of(client));
        const bool any = std::any_of(left.begin(), left.end(), [&](const SessionView& each) {
            return std::any_of(victims.begin(), victims.end(),
                               [&](const SessionView& victim) { return victim.id == each.id; });
        });
        if (!any) break;
        if (Clock::now() >= deadline)
            return Error{Errc::kTimeout, 0, "wait for the sessions to end"};
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (options.json) std::printf("%s\n", one_line({{"evicted", list}}).c_str());
    return {};
}

}  // namespace fabricd
