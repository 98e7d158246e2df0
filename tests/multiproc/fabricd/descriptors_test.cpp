// fabricd without descriptors: for a moment, and with a limit that is too low from the start.

#include <dirent.h>
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <vector>

#include "libfabricshm/os/fd.hpp"
#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/children.hpp"
#include "tests/support/program.hpp"
#include "tests/support/wire_client.hpp"

using namespace test_support;

namespace {

rlim_t open_files(pid_t pid) {
    DIR* folder = ::opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
    if (folder == nullptr) return 0;
    rlim_t count = 0;
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count - 2;  // the folder itself and the one above it
}

int status_code(const ReadyDaemon& daemon) {
    return run_program({FABRICCTL_PATH, "status", "--socket", daemon.folder() + "/admin.sock"})
        .code;
}

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

fabricshm::Fd connect_stream(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    fabricshm::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    if (::connect(socket.get(), name, sizeof address) != 0) socket.reset();
    return socket;
}

std::vector<WireClient> connections(const std::string& socket, int wanted) {
    std::vector<WireClient> all;
    for (int i = 0; i < wanted; ++i) {
        auto client = WireClient::connect(socket);
        if (client.ok()) all.push_back(std::move(*client));
    }
    return all;
}

}  // namespace

TEST_SUITE("fabricd.descriptors") {
    TEST_CASE("out of descriptors it says so a few times, and answers when there are some again") {
        ReadyDaemon daemon;
        REQUIRE(status_code(daemon) == 0);
        rlimit before{};
        REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &before) == 0);
        const rlimit few{open_files(daemon.pid()) + 4, before.rlim_max};
        REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr) == 0);
        auto waiting = connections(daemon.socket(), 60);
        CHECK(waiting.size() == 60);
        CHECK(becomes_true(
            [&] { return has(daemon.log(), "connections wait until there is room"); }));
        // The admin API and the attach socket run short together.
        const fabricshm::Fd asks = connect_stream(daemon.folder() + "/admin.sock");
        CHECK(asks);
        const int seconds_at_most = 30;
        CHECK(count(daemon.log(), "connections wait") <= seconds_at_most);
        CHECK(count(daemon.log(), "\n") < 200);
        REQUIRE(::prlimit(daemon.pid(), RLIMIT_NOFILE, &before, nullptr) == 0);
        CHECK(WireClient::attach(daemon.socket(), "late").ok());
        CHECK(status_code(daemon) == 0);
    }

    TEST_CASE("a limit that is too low costs connections, and neither the admin API nor a start") {
        Child limited([&]() -> int {
            const rlimit low{200, 200};
            if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return 1;
            ReadyDaemon daemon;
            const auto held = connections(daemon.socket(), 120);
            if (held.size() != 120) return 2;
            if (!becomes_true([&] { return has(daemon.log(), "refused connection"); })) return 3;
            if (!has(daemon.log(), "RLIMIT_NOFILE")) return 4;
            if (has(daemon.log(), "connections wait")) return 5;
            return status_code(daemon) == 0 ? 0 : 6;
        });
        CHECK(limited.wait() == 0);
    }
}
