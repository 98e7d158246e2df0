#include "fabricd/ctl/commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "fabricd/config/device_file.hpp"
#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/ctl_command.hpp"
#include "fabricd/ctl/views.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

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

// An arena without regions is not one that there is none of.
Result<void> check_arena(AdminClient& client, std::uint64_t id) {
    FABRIC_TRY(const Picture all, client.fetch(View::kArenas, 0));
    const bool is_there = std::any_of(all.arenas.begin(), all.arenas.end(),
                                      [=](const ArenaView& arena) { return arena.id == id; });
    if (is_there) return {};
    return fabricshm::explain({Errc::kNotFound, 0, "regions"},
                              "there is no arena %llu (fabricctl arenas)",
                              static_cast<unsigned long long>(id));
}

Result<void> look(const CtlOptions& options, AdminClient& client, View view) {
    const bool is_asked = view == View::kShards || view == View::kWaiting;
    if (options.watch && is_asked) return ask_again(options, client, view);
    if (options.watch) return watch(options, client, view);
    FABRIC_TRY(const Picture picture, client.fetch(view, options.arena_id));
    if (view == View::kRegions && options.arena_id != 0 && picture.regions.empty()) {
        FABRIC_TRY_VOID(check_arena(client, options.arena_id));
    }
    show(options, picture, view);
    return {};
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
    const CtlCommand* command = find_ctl_command(options.command);
    FABRIC_CHECK(command != nullptr);  // or the parser would not have taken it
    if (const auto* run = std::get_if<CtlRun>(&command->handler)) return (*run)(options);
    const View* view = std::get_if<View>(&command->handler);
    if (view != nullptr && !options.file.empty()) return check_device_file(options);
    CtlOptions connected = options;
    connected.socket = find_admin_socket(options.socket);
    auto client = AdminClient::connect(connected.socket, milliseconds(options.timeout));
    if (!client.ok()) return fail(client.error(), connected.socket, "");
    const auto done = view != nullptr ? look(connected, *client, *view)
                                      : std::get<CtlAsk>(command->handler)(connected, *client);
    return done.ok() ? CtlExit::kOk : fail(done.error(), connected.socket, client->last_text());
}

}  // namespace fabricd
