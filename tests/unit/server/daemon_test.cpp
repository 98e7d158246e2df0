#include "fabricd/server/daemon.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <semaphore>
#include <utility>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/flush_policy.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/wire_client.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kMiB;
using test_support::DaemonThread;
using test_support::options_in;
using test_support::TemporaryDirectory;
using test_support::WireClient;
namespace proto = fabricshm::proto;

namespace {

unsigned mode_of(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777u : 0;
}

/// A flush that begins when it is asked for and ends when the test lets it.
struct SlowFlush {
    fabricshm::Result<void> operator()(std::uint64_t offset, Bytes bytes) {
        ranges.emplace_back(offset, bytes);
        has_begun.release();
        may_go.acquire();
        if (error == Errc::kOk) return {};
        return fabricshm::Error{error, 0, "test flush"};
    }
    bool began() { return has_begun.try_acquire_for(std::chrono::seconds(30)); }

    std::counting_semaphore<> has_begun{0};
    std::counting_semaphore<> may_go{0};
    // By the flusher's thread, between the two; by the test when none runs.
    std::vector<std::pair<std::uint64_t, Bytes>> ranges;
    Errc error = Errc::kOk;
};

}  // namespace

TEST_SUITE("server.daemon") {
    TEST_CASE("a picture of thousands of regions keeps the control thread for parts of it") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path, "alice").value();
        const auto arena = alice.open_arena("job", 16 * kMiB).value();
        for (int i = 0; i < 3000; ++i) REQUIRE(alice.create_region(arena.arena_id, 4096).ok());
        const auto looked = [&] {
            MetricsText text;
            host.daemon->request_stats().add_to(text);
            const std::string name = "seconds_count{request=\"admin_snapshot\"} ";
            const auto at = text.text().find(name);
            return at == std::string::npos ? 0 : std::stoi(text.text().substr(at + name.size()));
        };
        const Snapshot totals = host.daemon->snapshot({});
        CHECK(totals.totals.regions == 3000);
        CHECK(totals.regions.empty());
        CHECK(totals.pool.capacity_bytes != 0);
        CHECK(looked() == 1);
        CHECK(host.daemon->snapshot().regions.size() == 3000);
        CHECK(looked() == 4);
    }

    TEST_CASE("two sessions share an arena, a tensor and a group") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path, "alice").value();
        auto bob = WireClient::attach(options.socket_path, "bob").value();
        CHECK(alice.session.session_id != bob.session.session_id);
        CHECK(alice.session.default_arena_bytes == 4 * kMiB);
        CHECK(alice.session.last_type == static_cast<std::uint16_t>(fabricshm::proto::kLastType));

        const auto arena = alice.open_arena("job", 8 * kMiB).value();
        CHECK(arena.bytes == 8 * kMiB);
        const auto same = bob.open_arena("job", 0).value();
        CHECK(same.arena_id == arena.arena_id);
        fabricshm::MapOptions map;
        const auto a = fabricshm::Mapping::map(alice.descriptor, 0, arena.bytes, map).value();
        const auto b = fabricshm::Mapping::map(bob.descriptor, 0, arena.bytes, map).value();

        const auto region = alice.create_region(arena.arena_id, 100).value();
        CHECK(region.bytes == 4096);
        a.data()[region.offset] = std::byte{42};
        const auto seen = bob.open_region(region).value();
        CHECK(b.data()[seen.offset] == std::byte{42});

        const auto tensor = alice.create_tensor(arena.arena_id, "weights", 1000).value();
        const auto found = bob.open_tensor(arena.arena_id, "weights", 0).value();
        CHECK(found.region.offset == tensor.region.offset);
        CHECK(found.shape[0] == 1000);
        CHECK(found.owner_pid == ::getpid());

        const auto sent = bob.send(test_support::join_request(arena.arena_id, "ring", -1, 2));
        REQUIRE(sent.ok());
        const auto joined = alice.join(arena.arena_id, "ring", -1, 2).value();
        const auto other = bob.receive().value().group;
        CHECK(joined.rank + other.rank == 1);
        CHECK(joined.block_offset == other.block_offset);
        const auto* header =
            reinterpret_cast<const fabricshm::GroupHeader*>(a.data() + joined.block_offset);
        CHECK(header->magic == fabricshm::kGroupMagic);
        CHECK(header->group_id == joined.group_id);

        const Snapshot all = host.daemon->snapshot();
        CHECK(all.sessions.size() == 2);
        CHECK(all.regions.size() == 2);
        CHECK(all.groups.at(0).state == GroupState::kComplete);
        CHECK(all.pool.used_bytes == 8 * kMiB);
    }

    TEST_CASE("clients of a guest's get arenas, published ones not, and hear why") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto maker = WireClient::attach(options.socket_path, "maker").value();
        const auto arena = maker.open_arena("cache", kMiB, proto::kArenaPublish);
        REQUIRE(arena.ok());
        auto ends = fabricshm::UnixSocket::pair().value();
        Peer peer{103, 1000, 1000};
        peer.host = "far";
        host.daemon->take_guest(std::move(ends.first), peer);
        WireClient far;
        far.socket() = std::move(ends.second);
        REQUIRE(far.hello("far").ok());
        const auto refused = [&](const fabricshm::Error& error) {
            CHECK(error.code == Errc::kUnsupported);
            const std::string reason = fabricshm::reason_of(error);
            CHECK(
                reason ==
                "published arenas are for processes of the host whose fabricd owns the pool; this "
                "one is its guest");
        };
        refused(far.open_arena("other", kMiB, proto::kArenaPublish).error());
        refused(far.open_arena("cache", 0, proto::kArenaSubscribe).error());
        proto::Message page = proto::make_request(proto::Type::kPinPage, 0);
        page.pin_page.arena_id = arena->arena_id;
        refused(far.ask(page).error());
        proto::Message pages = proto::make_request(proto::Type::kPinPages, 0);
        pages.pin_pages.arena_id = arena->arena_id;
        refused(far.ask(pages).error());
        // The session goes on.
        CHECK(far.open_arena("job", kMiB).ok());
        CHECK(host.daemon->snapshot().arenas.size() == 2);
    }

    TEST_CASE("an arena goes when the last session says goodbye") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        REQUIRE(alice.open_arena("job", 0).ok());
        alice.bye();
        CHECK(host.eventually([](const Snapshot& all) {
            return all.sessions.empty() && all.arenas.empty() && all.pool.used_bytes == 0;
        }));
    }

    TEST_CASE("a session without a connection ends by a goodbye with its number and token") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.adopt_grace = std::chrono::hours(1);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        fabricshm::proto::Hello known{};
        {
            auto alice = WireClient::attach(options.socket_path).value();
            REQUIRE(alice.open_arena("job", 0).ok());
            known = alice.session;
        }
        using fabricshm::proto::Type;
        const auto say = [&](const fabricshm::proto::Hello& as) {
            auto client = WireClient::connect(options.socket_path).value();
            auto bye = fabricshm::proto::make_request(Type::kBye, 1);
            bye.hello.session_id = as.session_id;
            std::ranges::copy(as.token, bye.hello.token);
            const auto answer = client.ask(bye);
            return answer.ok() ? Errc::kOk : answer.error().code;
        };
        auto stranger = known;
        stranger.token[15] ^= 1;
        CHECK(say(stranger) == Errc::kDenied);
        CHECK(host.daemon->snapshot().arenas.size() == 1);
        CHECK(say(known) == Errc::kOk);
        CHECK(host.eventually([](const Snapshot& all) {
            return all.sessions.empty() && all.arenas.empty() && all.pool.used_bytes == 0;
        }));
        CHECK(say(known) == Errc::kNotFound);
        // Without a number it is no request that may come first.
        CHECK(say({}) == Errc::kInvalid);
    }

    TEST_CASE("a goodbye is heard behind a request whose answer is not waited for any more") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        // A session that is only cut off stays for so long.
        options.adopt_grace = std::chrono::hours(1);
        std::atomic<bool> holds{false};
        std::latch held(1);
        std::latch released(1);
        options.tick_period = std::chrono::milliseconds(1);
        options.on_tick = [&] {
            if (!holds.exchange(false)) return;
            held.count_down();
            released.wait();
        };
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        holds = true;
        held.wait();
        const auto asked =
            alice.send(fabricshm::proto::make_request(fabricshm::proto::Type::kTelemetryOpen, 0));
        alice.bye();
        alice.socket().shut_down();
        released.count_down();
        CHECK(asked.ok());
        CHECK(host.eventually([](const Snapshot& all) { return all.sessions.empty(); }));
    }

    TEST_CASE("the socket is for its owner alone, and goes with the daemon") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        {
            DaemonThread host(options);
            REQUIRE(host.daemon);
            CHECK(mode_of(options.socket_path) == 0600);
            CHECK(mode_of(directory.file("run")) == 0700);
            CHECK(mode_of(directory.file("state")) == 0700);
            CHECK(mode_of(directory.file("state/journal")) == 0600);
        }
        CHECK(std::filesystem::is_empty(directory.file("run")));
    }

    TEST_CASE("a daemon that stops without sessions and arenas leaves no journal") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        { DaemonThread host(options); }
        CHECK(std::filesystem::is_empty(directory.file("state")));
        {
            DaemonThread host(options);
            REQUIRE(host.daemon);
            WireClient client = WireClient::attach(options.socket_path).value();
        }
        // That session could still come back to the next daemon.
        CHECK(std::filesystem::exists(directory.file("state/journal")));
    }

    TEST_CASE("a second daemon is refused while the first one lives") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread first(options);
        REQUIRE(first.daemon);
        CHECK(DaemonThread(options).error.code == Errc::kBusy);
        DaemonOptions other_state = options;
        other_state.state_dir = directory.file("other");
        CHECK(DaemonThread(other_state).error.code == Errc::kBusy);
        first.stop();
        first.daemon.reset();
        const DaemonThread second(options);
        CHECK(second.error.code == Errc::kOk);
    }

    TEST_CASE("options out of their range are named") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.socket_path = "relative.sock";
        CHECK(std::string(DaemonThread(options).error.step) == "socket_path");
        options = options_in(directory);
        options.socket_mode = 04600;
        CHECK(DaemonThread(options).error.code == Errc::kInvalid);
        options = options_in(directory);
        options.socket_group = "no-such-group";
        CHECK(DaemonThread(options).error.code == Errc::kInvalid);
    }

    TEST_CASE("while draining there are no new sessions and arenas, and the old ones go on") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        const auto arena = alice.open_arena("job", 0).value();
        host.daemon->drain(true);
        CHECK(alice.create_region(arena.arena_id, 1).ok());
        CHECK(alice.open_arena("another", 0).error().code == Errc::kBusy);
        CHECK(WireClient::attach(options.socket_path).error().code == Errc::kBusy);
        host.daemon->drain(false);
        CHECK(WireClient::attach(options.socket_path).ok());
    }

    TEST_CASE(
        "snapshots are answered before, during and after the run, and stop() may come first") {
        const TemporaryDirectory directory;
        auto daemon =
            Daemon::start(options_in(directory), test_support::small_pool().value()).value();
        CHECK(daemon->snapshot().daemon_epoch == 1);
        daemon->stop();
        CHECK(daemon->run().ok());
        CHECK(daemon->snapshot().pool.backend == "emu");
    }

    TEST_CASE("what a killed daemon left on a device and no record names is free again") {
        const TemporaryDirectory directory;
        fabricshm::DaxOptions dax;
        dax.devices = {directory.file("device")};
        std::ofstream(dax.devices[0]).close();
        std::filesystem::resize_file(dax.devices[0], 16 * kMiB);
        {
            const auto pool = fabricshm::make_dax_backend(dax).value();
            REQUIRE(pool->create(7, "lost", 0, 4 * kMiB).ok());
        }
        DaemonThread host(options_in(directory), fabricshm::make_dax_backend(dax));
        REQUIRE(host.daemon);
        CHECK(host.eventually([](const Snapshot& all) { return all.pool.used_bytes == 0; }));
        // All of the device is to be had, its first block aside.
        auto client = WireClient::attach(options_in(directory).socket_path).value();
        CHECK(client.open_arena("job", 14 * kMiB).ok());
    }

    TEST_CASE("a region leaves this host's caches before a session of another host hears of it") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.visibility_profile = "clflush";
        options.visibility = fabricshm::make_policy(fabricshm::find_profile("clflush").value());
        auto daemon = Daemon::start(options, test_support::small_pool().value()).value();
        SlowFlush flush;
        daemon->write_out_by(
            [&](const OpenRange& range) { return flush(range.offset, range.bytes); });
        std::thread control([&] { (void)daemon->run(); });
        auto alice = WireClient::attach(options.socket_path, "alice").value();
        auto pair = fabricshm::UnixSocket::pair().value();
        WireClient far;
        far.socket() = std::move(pair.first);
        daemon->take_guest(std::move(pair.second), {4711, ::geteuid(), 0, "far", 77, 5, 88, 99});
        REQUIRE(far.hello("far").ok());
        const auto arena = alice.open_arena("job", 8 * kMiB).value();
        REQUIRE(far.open_arena("job", 0).ok());
        const auto own = alice.create_region(arena.arena_id, kMiB).value();
        REQUIRE(alice.free_region(own).ok());

        auto request = fabricshm::proto::make_request(fabricshm::proto::Type::kRegionCreate, 0);
        request.region.arena_id = arena.arena_id;
        request.region.bytes = kMiB;
        REQUIRE(far.send(request).ok());
        CHECK(flush.began());
        // Others are served while it lasts, and no answer is on its way to the one that waits.
        CHECK(alice.create_region(arena.arena_id, 4096).ok());
        pollfd readable{far.socket().get(), POLLIN, 0};
        CHECK(::poll(&readable, 1, 0) == 0);
        flush.may_go.release();
        const auto granted = far.receive().value().region;
        CHECK(granted.offset == own.offset);
        CHECK(flush.ranges == std::vector<std::pair<std::uint64_t, Bytes>>{{own.offset, kMiB}});

        // What can't be written out is not granted, and is free.
        REQUIRE(alice.create_region(arena.arena_id, kMiB).ok());
        alice.bye();
        flush.error = Errc::kSystem;
        flush.may_go.release();
        CHECK(far.create_region(arena.arena_id, 2 * kMiB).error().code == Errc::kSystem);
        CHECK(daemon->snapshot().regions.size() == 1);
        flush.error = Errc::kOk;
        flush.may_go.release();
        CHECK(far.create_tensor(arena.arena_id, "w", 1000).ok());
        daemon->stop();
        control.join();
    }
}
