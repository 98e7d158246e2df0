// Sessions in processes of their own: how they come, lose their connection, and die.

#include <dirent.h>
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/wire_client.hpp"

using namespace test_support;
using namespace std::chrono_literals;
using fabricd::Snapshot;
using fabricshm::Errc;
using fabricshm::kMiB;

namespace {

fabricd::DaemonOptions options_at(const TemporaryDirectory& directory) {
    fabricd::DaemonOptions options;
    options.socket_path = FabricdProcess::socket_in(directory.path());
    options.state_dir = FabricdProcess::state_in(directory.path());
    return options;
}

std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> names_in(const char* folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        names.insert(entry.path().filename().string());
    }
    return names;
}

}  // namespace

TEST_SUITE("multiproc.pool.processes") {
    TEST_CASE("a killed process is noticed: its rank is marked and its memory kept from others") {
        const TemporaryDirectory directory;
        const auto options = options_at(directory);
        Gate joined;
        Child victim([&]() -> int {
            auto client = WireClient::attach(options.socket_path, "victim");
            if (!client.ok()) return 1;
            const auto arena = client->open_arena("job", 16 * kMiB);
            if (!arena.ok() || !client->create_region(arena->arena_id, 8192).ok()) return 2;
            if (!client->join(arena->arena_id, "g", 1, 2).ok()) return 3;
            joined.open();
            Gate forever;
            forever.wait();
            return 0;
        });
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path, "alice").value();
        const auto arena = alice.open_arena("job", 16 * kMiB).value();
        const auto group = alice.join(arena.arena_id, "g", 0, 2).value();
        REQUIRE(joined.wait());
        const auto mapping = fabricshm::Mapping::map(alice.descriptor, arena.file_offset,
                                                     arena.bytes, {true, arena.align, 0})
                                 .value();
        const auto layout = fabricshm::GroupLayout::of(2);
        auto* words = reinterpret_cast<fabricshm::RankWords*>(mapping.data() + group.block_offset +
                                                              layout.ranks);
        CHECK(words[1].dead.load() == 0);
        const auto killed_at = fabricshm::Clock::now();
        victim.kill();
        while (words[1].dead.load() == 0 && fabricshm::Clock::now() < killed_at + 20s) {
            std::this_thread::yield();
        }
        CHECK(words[1].dead.load() == 1);
        CHECK(words[0].dead.load() == 0);
        const Snapshot all = host.daemon->snapshot();
        CHECK(all.sessions.size() == 1);
        CHECK(all.arenas.at(0).bytes_quarantined == 8192);
        CHECK(all.groups.at(0).dead_ranks == std::vector<std::int32_t>{1});
        REQUIRE(alice.leave(group.group_id).ok());
        CHECK(host.daemon->snapshot().arenas.at(0).bytes_used == 0);
    }

    TEST_CASE("a forked child that still holds the socket does not keep the session alive") {
        const TemporaryDirectory directory;
        const auto options = options_at(directory);
        Gate attached, forked;
        Child parent([&]() -> int {
            auto client = WireClient::attach(options.socket_path, "parent");
            if (!client.ok()) return 1;
            attached.open();
            Child grandchild([&]() -> int {
                forked.open();
                Gate forever;
                forever.wait();
                return 0;
            });
            Gate forever;
            forever.wait();
            return 0;
        });
        DaemonThread host(options);
        REQUIRE(host.daemon);
        REQUIRE(attached.wait());
        REQUIRE(forked.wait());
        CHECK(host.daemon->snapshot().sessions.size() == 1);
        parent.kill();
        CHECK(host.eventually([](const Snapshot& all) { return all.sessions.empty(); }));
    }

    TEST_CASE("a live process that lost its connection comes back, and no other in its place") {
        const TemporaryDirectory directory;
        const auto options = options_at(directory);
        auto* stolen = static_cast<fabricshm::proto::Hello*>(
            ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        Gate told;
        Child thief([&]() -> int {
            if (!told.wait()) return 1;
            auto mine = WireClient::connect(options.socket_path);
            WireClient theirs;
            theirs.session = *stolen;
            return mine.ok() && mine->hello_again(theirs).error().code == Errc::kDenied ? 0 : 2;
        });
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        const auto arena = alice.open_arena("job", kMiB).value();
        const auto region = alice.create_region(arena.arena_id, 4096).value();
        alice.socket().reset();
        CHECK(host.eventually([](const Snapshot& all) { return !all.sessions.at(0).connected; }));
        *stolen = alice.session;
        told.open();
        CHECK(thief.wait() == 0);
        auto again = WireClient::connect(options.socket_path).value();
        REQUIRE(again.hello_again(alice).ok());
        CHECK(again.open_region(region).value().offset == region.offset);
        ::munmap(stolen, 4096);
    }

    TEST_CASE("one that does not come back within the grace ends") {
        const TemporaryDirectory directory;
        auto options = options_at(directory);
        options.adopt_grace = 100ms;
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        REQUIRE(alice.open_arena("job", kMiB).ok());
        alice.socket().reset();
        CHECK(host.eventually([](const Snapshot& all) {
            return all.sessions.empty() && all.arenas.empty() && all.pool.used_bytes == 0;
        }));
    }

    TEST_CASE("a hundred starts and kills leave nothing behind") {
        const auto shm_before = names_in("/dev/shm");
        const auto fds_before = names_in("/proc/self/fd").size();
        const TemporaryDirectory directory;
        const std::string socket = FabricdProcess::socket_in(directory.path());
        for (int round = 0; round < 100; ++round) {
            CAPTURE(round);
            Gate attached;
            FabricdProcess daemon(directory.path());
            Child client([&]() -> int {
                auto session = WireClient::attach(socket);
                const auto arena =
                    session.ok() ? session->open_arena("job", kMiB) : session.error();
                if (!arena.ok()) {
                    std::fprintf(stderr, "round %d: %s\n", round,
                                 fabricshm::describe(arena.error()).c_str());
                    return 1;
                }
                attached.open();
                // Requests are in flight whenever the end comes.
                while (session->create_region(1, 1).error().code == Errc::kNotFound) {
                }
                Gate forever;
                forever.wait();
                return 0;
            });
            const bool in_time = attached.wait();
            if (!in_time) {
                MESSAGE("fabricd ", daemon.ended() ? "ended" : "runs", ": ",
                        text_of(directory.file("log")));
            }
            REQUIRE(in_time);
            if (round % 2 == 0) client.kill();
            daemon.kill();
        }
        FabricdProcess last(directory.path());
        REQUIRE(WireClient::attach(socket).ok());
        CHECK(last.stop() == 0);
        CHECK_FALSE(std::filesystem::exists(socket));
        CHECK_FALSE(std::filesystem::exists(socket + ".lock"));
        // The journal says little more than that there is nothing.
        CHECK(std::filesystem::file_size(FabricdProcess::state_in(directory.path()) + "/journal") <
              4096);
        CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no process is left
        CHECK(names_in("/proc/self/fd").size() == fds_before);
        for (const std::string& name : names_in("/dev/shm")) {
            if (name.starts_with("fabric-test-")) continue;  // a folder of a test that runs, too
            CAPTURE(name);
            CHECK((shm_before.count(name) == 1 || name.find("fabric") == std::string::npos));
        }
    }
}
