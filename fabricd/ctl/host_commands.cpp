#include "fabricd/ctl/host_commands.hpp"

#include <poll.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "fabricd/ctl/discover_view.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/server/admin_server.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

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

// What the daemon of this host emulates; "" when none answers.
// A host without a daemon has something to discover, too, so that none is no error here.
std::string emulated_machine(const CtlOptions& options) {
    auto client = AdminClient::connect(find_admin_socket(options.socket));
    if (!client.ok()) return "";
    const auto picture = client->fetch(View::kPools, 0);
    if (!picture.ok() || picture->pools.empty()) return "";
    return picture->pools.front().machine;
}

}  // namespace

Result<void> drain_daemon(const CtlOptions& options, AdminClient& client) {
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
Result<void> shut_down(const CtlOptions& options, AdminClient& client) {
    // Before it is asked to end: afterwards its number may be that of another process.
    const fabricshm::Fd process = daemon_process(options.socket);
    FABRIC_TRY_VOID(client.shutdown());
    const auto deadline =
        fabricshm::deadline_after(Clock::now(), milliseconds(options.wait.value_or(10.0)));
    // Its end, and not that of its socket: a watch that is still open, a dashboard's, keeps it for
    // a second longer, in which it holds its state and a successor is refused.
    if (process && !fabricshm::wait_ready(process.get(), POLLIN, deadline, "wait for it").ok()) {
        return Error{Errc::kTimeout, 0, "wait for fabricd to end"};
    }
    // The only sign of a daemon whose process can't be seen from here.
    while (probe_socket(options.socket) == Errc::kOk) {
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, 0, "wait for fabricd to end"};
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    std::printf("%s\n", options.json ? one_line({{"ended", true}}).c_str() : "fabricd has ended");
    return {};
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

CtlExit print_completion(const CtlOptions& options) {
    std::printf("%s", completion_script(ctl_program(), options.subject).value().c_str());
    return CtlExit::kOk;
}

}  // namespace fabricd
