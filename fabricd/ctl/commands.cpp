#include "fabricd/ctl/commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "fabricd/config/device_file.hpp"
#include "fabricd/config/runtime_dir.hpp"
#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/decision_commands.hpp"
#include "fabricd/ctl/discover_view.hpp"
#include "fabricd/ctl/environment.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/operator_commands.hpp"
#include "fabricd/ctl/shard_commands.hpp"
#include "fabricd/ctl/tune_command.hpp"
#include "fabricd/ctl/vgpu_commands.hpp"
#include "fabricd/ctl/views.hpp"
#include "fabricd/server/admin_server.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

/// The named socket, else $FABRIC_ADMIN_SOCKET, else the first of the usual ones that is there.
/// A socket that we may not use counts as found: "for the daemon's own user" helps more than "no
/// daemon answers" at some other place. With none found, the message names the place that was tried
/// first.
std::string find_socket(const CtlOptions& options) {
    if (!options.socket.empty()) return options.socket;
    if (const char* given = std::getenv("FABRIC_ADMIN_SOCKET")) return given;
    const auto usual = admin_socket_candidates();
    for (const auto& path : usual) {
        const Errc found = probe_socket(path);
        if (found == Errc::kOk || found == Errc::kDenied) return path;
    }
    return usual.front();
}

// One line, and the code that scripts check: a missing daemon has another code than its refusal, so
// that a script can start one.
CtlExit fail(const Error& error, const std::string& socket, const std::string& said) {
    if (error.code == Errc::kDaemon) {
        std::fprintf(
            stderr,
            "fabricctl: no fabricd answers at %s (start it, or name its socket by --socket "
            "or FABRIC_ADMIN_SOCKET)\n",
            socket.c_str());
        return CtlExit::kNoDaemon;
    }
    if (error.code == Errc::kDenied) {
        std::fprintf(stderr, "fabricctl: %s is for the daemon's own user and root\n",
                     socket.c_str());
        return CtlExit::kFailed;
    }
    // What the daemon said names the cause; the code's own text would only repeat it.
    const std::string why = said.empty() ? fabricshm::explanation_of(error) : said;
    std::fprintf(stderr, "fabricctl: %s\n", why.c_str());
    return CtlExit::kFailed;
}

// Pictures of a watch are separated by a clear screen on a terminal and by an empty line in a file;
// JSON has one line for each.
void show(const CtlOptions& options, const Picture& picture, View view) {
    if (options.json) {
        std::printf("%s\n", json_view(picture, view).c_str());
    } else if (options.watch && ::isatty(STDOUT_FILENO) == 1) {
        // Cleared first: a longer line of the last picture would show through behind a shorter one.
        std::printf("\033[H\033[2J%s", text_view(picture, view).c_str());
    } else {
        std::printf("%s%s", text_view(picture, view).c_str(), options.watch ? "\n" : "");
    }
    // Each picture arrives when it is made: a pipe's reader would otherwise get them by the page.
    std::fflush(stdout);
}

Result<void> watch(const CtlOptions& options, AdminClient& client, View view) {
    std::uint64_t left = options.count;
    return client.watch(view, milliseconds(*options.watch), [&](Picture& picture) {
        // The daemon's watch has no filter: it sends the regions of all arenas.
        if (options.arena_id != 0) {
            std::erase_if(picture.regions, [&](const RegionView& region) {
                return region.arena_id != options.arena_id;
            });
        }
        show(options, picture, view);
        // A reader that went away (a closed pipe) ends the watch too.
        return std::ferror(stdout) == 0 && --left != 0;
    });
}

// The daemon's watch carries neither shards nor waits, so that they are asked for again and again.
Result<void> ask_again(const CtlOptions& options, AdminClient& client, View view) {
    std::uint64_t left = options.count;
    for (;;) {
        // With the daemon's end the next request ends it, as it ends a watch.
        FABRIC_TRY(const Picture picture, client.fetch(view, 0));
        show(options, picture, view);
        if (std::ferror(stdout) != 0 || --left == 0) return {};
        std::this_thread::sleep_for(milliseconds(*options.watch));
    }
}

Result<void> look(const CtlOptions& options, AdminClient& client, View view) {
    const bool is_asked = view == View::kShards || view == View::kWaiting;
    if (options.watch && is_asked) return ask_again(options, client, view);
    if (options.watch) return watch(options, client, view);
    FABRIC_TRY(const Picture picture, client.fetch(view, options.arena_id));
    show(options, picture, view);
    return {};
}

/// Prints how many sessions are left until there are none.
Result<void> wait_for_sessions(AdminClient& client, double seconds) {
    // A watch that ends itself, in place of asking again and again: it also ends at once when the
    // daemon dies.
    const auto deadline = fabricshm::deadline_after(Clock::now(), milliseconds(seconds));
    bool ended = false;
    std::uint64_t last = ~std::uint64_t{0};
    const auto watched =
        client.watch(View::kStatus, std::chrono::milliseconds(200), [&](Picture& picture) {
            const auto left = picture.status.sessions;
            // Only when it changed: the log of a drain that takes an hour stays readable.
            if (left != last)
                std::fprintf(stderr, "%llu sessions left\n", static_cast<unsigned long long>(left));
            last = left;
            ended = left == 0;
            // Checked with each picture, so up to 200 ms late.
            return !ended && Clock::now() < deadline;
        });
    if (!watched.ok()) return watched.error();
    if (!ended) return Error{Errc::kTimeout, 0, "wait for the sessions to end"};
    return {};
}

Result<void> drain(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY_VOID(client.drain(!options.drain_off));
    if (options.wait && !options.drain_off) {
        FABRIC_TRY_VOID(wait_for_sessions(client, *options.wait));
    }
    const char* state = options.drain_off ? "serving" : "draining";
    if (options.json) {
        std::printf("%s\n", one_line({{"draining", !options.drain_off}}).c_str());
    } else {
        std::printf("fabricd is %s\n", state);
    }
    return {};
}

// The answer is no sign that the socket is free for a successor: the daemon answers first and ends
// afterwards.
// Waits for ten seconds without --wait, too: a script that starts a successor would find the socket
// taken.
Result<void> shutdown(const CtlOptions& options, AdminClient& client, const std::string& socket) {
    FABRIC_TRY_VOID(client.shutdown());
    const auto deadline =
        fabricshm::deadline_after(Clock::now(), milliseconds(options.wait.value_or(10.0)));
    // Its socket is the last sign of it: there is nothing to be notified by.
    while (probe_socket(socket) == Errc::kOk) {
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, 0, "wait for fabricd to end"};
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::printf("%s\n", options.json ? one_line({{"ended", true}}).c_str() : "fabricd has ended");
    return {};
}

// What the daemon of this host emulates; "" when none answers.
// A host without a daemon has something to discover, too, so that none is no error here.
std::string emulated_machine(const CtlOptions& options) {
    auto client = AdminClient::connect(find_socket(options));
    if (!client.ok()) return "";
    const auto picture = client->fetch(View::kPools, 0);
    if (!picture.ok() || picture->pools.empty()) return "";
    return picture->pools.front().machine;
}

CtlExit discover_host(const CtlOptions& options) {
    const std::string machine = emulated_machine(options);
    // Of this host itself, not of the daemon: what it would find if it were started now.
    const auto found = fabricshm::discover({});
    const auto choice = fabricshm::choose_backend(found);
    if (options.json) {
        std::printf("%s\n", discover_json(found, choice, machine).c_str());
    } else {
        std::printf("%s", discover_text(found, choice, machine).c_str());
    }
    return CtlExit::kOk;
}

// Shown as a daemon would show them, with no session on them yet.
CtlExit check_device_file(const CtlOptions& options) {
    std::vector<DeviceSpec> devices;
    if (const auto bad = read_device_file(options.file, devices)) {
        std::fprintf(stderr, "fabricctl: --file: %s\n", bad->c_str());
        return CtlExit::kUsage;
    }
    Picture picture;
    for (const auto& device : devices) picture.devices.push_back({device, true, 0, 0});
    show(options, picture, View::kDevices);
    return CtlExit::kOk;
}

}  // namespace

CtlExit run_command(const CtlOptions& options) {
    // The first five do without a daemon, so they come before the search for one.
    if (options.command == "discover") return discover_host(options);
    if (options.command == "tune") return run_tune(options);
    if (options.command == "replay") return run_replay(options);
    if (options.command == "env") {
        std::printf(
            "%s", options.json ? (environment_json() + "\n").c_str() : environment_text().c_str());
        return CtlExit::kOk;
    }
    if (!options.file.empty()) return check_device_file(options);
    static const std::map<std::string, View> kViews = {
        {"status", View::kStatus},   {"pools", View::kPools},   {"arenas", View::kArenas},
        {"regions", View::kRegions}, {"groups", View::kGroups}, {"sessions", View::kSessions},
        {"devices", View::kDevices}, {"shards", View::kShards}, {"top", View::kTop},
        {"waiting", View::kWaiting}};
    const std::string socket = find_socket(options);
    auto client = AdminClient::connect(socket);
    if (!client.ok()) return fail(client.error(), socket, "");
    Result<void> done;
    if (const auto view = kViews.find(options.command); view != kViews.end()) {
        done = look(options, *client, view->second);
    } else if (is_vgpu_command(options.command)) {
        done = run_vgpu_command(options, *client);
    } else if (options.command == "drain") {
        done = drain(options, *client);
    } else if (options.command == "migrate") {
        done = migrate_shard(options, *client);
    } else if (options.command == "quota") {
        done = set_quota(options, *client);
    } else if (options.command == "decisions") {
        done = show_decisions(options, *client);
    } else if (options.command == "why") {
        done = show_why(options, *client);
    } else if (options.command == "health") {
        done = show_health(options, *client);
    } else if (options.command == "events") {
        done = show_events(options, *client);
    } else if (options.command == "inspect") {
        done = inspect(options, *client);
    } else if (options.command == "evict") {
        done = evict(options, *client);
    } else {
        done = shutdown(options, *client, socket);
    }
    return done.ok() ? CtlExit::kOk : fail(done.error(), socket, client->last_text());
}

}  // namespace fabricd
