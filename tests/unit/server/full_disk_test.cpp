// The daemon on a disk that is full or read-only: what it refuses, what it must not forget, and
// that it goes on when there is space again.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "libfabricshm/proto/codec.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/small_disk.hpp"
#include "tests/support/wire_client.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::kMiB;
using test_support::DaemonThread;
using test_support::SmallDisk;
using test_support::TemporaryDirectory;
using test_support::WireClient;
namespace proto = fabricshm::proto;

namespace {

struct Fixture {
    Fixture() : disk(directory.file("state")), options(test_support::options_in(directory)) {
        options.adopt_grace = std::chrono::hours(1);
    }
    /// Grants and releases until there is no room for a grant; every release is taken.
    Error grant_until_refused(WireClient& client, std::uint64_t arena) const {
        for (int i = 0; i < 20000; ++i) {
            const auto region = client.create_region(arena, 4096);
            if (!region.ok()) return region.error();
            if (!client.free_region(*region).ok()) return {Errc::kInternal, 0, "release"};
        }
        return {Errc::kOk, 0, ""};
    }
    /// A client is let in again; false when that takes more than half a minute.
    bool recovers() const {
        const auto until = fabricshm::Clock::now() + std::chrono::seconds(30);
        while (fabricshm::Clock::now() < until) {
            if (WireClient::attach(options.socket_path).ok()) return true;
            std::this_thread::yield();
        }
        return false;
    }
    TemporaryDirectory directory;
    SmallDisk disk;
    DaemonOptions options;
};

bool holds(Daemon& daemon, const proto::Region& region) {
    for (const RegionView& view : daemon.snapshot().regions) {
        if (view.id == region.region_id && view.generation == region.generation) return true;
    }
    return false;
}

proto::Message free_request(const proto::Region& region) {
    proto::Message request = proto::make_request(proto::Type::kRegionFree, 0);
    request.region = region;
    return request;
}

proto::Message open_request(const proto::Region& region) {
    proto::Message request = proto::make_request(proto::Type::kRegionOpen, 0);
    request.region = region;
    return request;
}

}  // namespace

TEST_SUITE("server.full_disk") {
    TEST_CASE(
        "a full disk refuses grants by its name, takes releases, and is no reason to forget") {
        const Fixture fixture;
        if (!fixture.disk.is_there) return;
        DaemonThread first(fixture.options);
        REQUIRE(first.daemon);
        auto alice = WireClient::attach(fixture.options.socket_path).value();
        const auto arena = alice.open_arena("job", kMiB).value();
        const auto freed = alice.create_region(arena.arena_id, 4096).value();
        const auto kept = alice.create_region(arena.arena_id, 4096).value();

        fixture.disk.fill();
        const Error refused = fixture.grant_until_refused(alice, arena.arena_id);
        CHECK(refused.code == Errc::kSystem);
        CHECK(refused.detail == ENOSPC);
        CHECK(WireClient::attach(fixture.options.socket_path).error().detail == ENOSPC);
        CHECK(first.daemon->snapshot().alarms.size() == 1);
        CHECK(alice.free_region(freed).ok());
        first.stop();
        first.daemon.reset();

        // The journal is all that the next one has; it can't make a fresh one.
        DaemonThread second(fixture.options);
        REQUIRE(second.daemon);
        CHECK(holds(*second.daemon, kept));
        CHECK_FALSE(holds(*second.daemon, freed));
        CHECK(WireClient::attach(fixture.options.socket_path).error().detail == ENOSPC);
        auto again = WireClient::connect(fixture.options.socket_path).value();
        CHECK(again.hello_again(alice).ok());
        CHECK(again.free_region(kept).error().detail == ENOSPC);
        fixture.disk.make_space();
        CHECK(fixture.recovers());
        CHECK(second.daemon->snapshot().alarms.empty());
        CHECK(again.free_region(kept).ok());
    }

    TEST_CASE("a release that can't be written is answered when it can, and not before") {
        const Fixture fixture;
        if (!fixture.disk.is_there) return;
        DaemonThread first(fixture.options);
        REQUIRE(first.daemon);
        auto alice = WireClient::attach(fixture.options.socket_path).value();
        const auto arena = alice.open_arena("job", 64 * kMiB).value();
        const auto kept = alice.create_region(arena.arena_id, 4096).value();
        // More than there is room for in what is set aside for releases.
        std::vector<proto::Region> regions;
        while (regions.size() < 14000) {
            regions.push_back(alice.create_region(arena.arena_id, 4096).value());
        }
        fixture.disk.fill();
        std::size_t answered = 0;
        std::uint64_t waiting = 0;
        while (waiting == 0 && answered < regions.size()) {
            fixture.disk.fill();  // also what a compaction gives back that was under way
            const std::uint64_t asked = alice.send(free_request(regions[answered])).value();
            REQUIRE(alice.send(open_request(kept)).ok());
            const auto reply = alice.receive().value();
            if (reply.header.request_id != asked) {
                waiting = asked;
                break;
            }
            REQUIRE(reply.header.status == 0);
            REQUIRE(alice.receive().ok());
            ++answered;
        }
        REQUIRE(waiting != 0);
        CHECK(answered > 5000);
        CHECK(alice.free_region(regions[answered + 1]).error().detail == ENOSPC);
        fixture.disk.make_space();
        const auto reply = alice.receive().value();
        CHECK(reply.header.request_id == waiting);
        CHECK(reply.header.status == 0);
        first.stop();
        first.daemon.reset();
        DaemonThread second(fixture.options);
        REQUIRE(second.daemon);
        CHECK_FALSE(holds(*second.daemon, regions[answered]));
        CHECK(holds(*second.daemon, regions[answered + 1]));
    }

    TEST_CASE("a daemon starts on a disk that is read-only, and serves when it is not any more") {
        const Fixture fixture;
        if (!fixture.disk.is_there) return;
        DaemonThread first(fixture.options);
        REQUIRE(first.daemon);
        auto alice = WireClient::attach(fixture.options.socket_path).value();
        const auto arena = alice.open_arena("job", kMiB).value();
        const auto region = alice.create_region(arena.arena_id, 4096).value();
        first.stop();
        first.daemon.reset();
        // The lock file went with the daemon; after a crash it is still there.
        std::ofstream(fixture.directory.file("state/lock")) << "";
        REQUIRE(fixture.disk.remount(MS_RDONLY));
        DaemonThread second(fixture.options);
        REQUIRE(second.error.code == Errc::kOk);
        CHECK(holds(*second.daemon, region));
        CHECK(WireClient::attach(fixture.options.socket_path).error().detail == EROFS);
        REQUIRE(fixture.disk.remount(0));
        CHECK(fixture.recovers());
        CHECK(holds(*second.daemon, region));
    }

    TEST_CASE("what there is no space to start with is the disk's fault, and says so") {
        const Fixture fixture;
        if (!fixture.disk.is_there) return;
        fixture.disk.fill();
        DaemonOptions options = fixture.options;
        options.state_dir = fixture.directory.file("state/deeper");
        const DaemonThread daemon(options);
        // A folder may still fit where no block does.
        if (!daemon.daemon) {
            CHECK(daemon.error.code == Errc::kSystem);
            CHECK(daemon.error.detail == ENOSPC);
        }
    }
}
