// A session of the library and a daemon, in one process: steps go one way, directives the other,
// also while the daemon is away and when it is back.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <fabricshm/shard.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "tests/support/daemon_thread.hpp"

using namespace fabricd;
using test_support::DaemonThread;
using test_support::options_in;
using test_support::TemporaryDirectory;

namespace {

class Client {
  public:
    explicit Client(const std::string& socket) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket.c_str();
        options.label = "trainer";
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
    }
    ~Client() { fabricshm_session_close(session); }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    int step(std::uint64_t samples, const fabricshm_group* group = nullptr) {
        fabricshm_step_info info = fabricshm_step_info_make(samples);
        info.loss = 0.25;
        info.group = group;
        return fabricshm_step(session, &info);
    }
    fabricshm_directive directives() {
        fabricshm_directive directive{};
        directive.struct_size = sizeof directive;
        CHECK(fabricshm_directives(session, &directive) == 0);
        return directive;
    }

    fabricshm_session* session = nullptr;
};

// Polls, because nothing reports when a page has gone through the socket.
bool eventually(const std::function<bool()>& wanted) {
    const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(30);
    while (fabricshm::Clock::now() < deadline) {
        if (wanted()) return true;
        std::this_thread::yield();
    }
    return false;
}

std::vector<SessionSample> sample(Daemon& daemon) {
    std::vector<SessionSample> sessions;
    daemon.pages().sample(sessions, fabricshm::Clock::now().time_since_epoch().count(),
                          std::int64_t{60} * 1'000'000'000, 0, 1);
    return sessions;
}

// One session that has counted so many samples.
bool sees(Daemon& daemon, std::uint64_t samples) {
    const auto sessions = sample(daemon);
    return sessions.size() == 1 && sessions[0].image.samples == samples;
}

fabricshm::DirectiveImage order(std::uint64_t serial, std::uint32_t interval) {
    fabricshm::DirectiveImage image{};
    image.serial = serial;
    image.sync_interval = interval;
    return image;
}

}  // namespace

TEST_SUITE("telemetry.round_trip") {
    TEST_CASE("steps are seen by the daemon, and its directives by the session") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        Client client(options.socket_path);
        CHECK(sample(*host.daemon).empty());
        fabricshm_arena* arena = nullptr;
        fabricshm_group* group = nullptr;
        REQUIRE(fabricshm_arena_open(client.session, "job", 0, 0, &arena) == 0);
        REQUIRE(fabricshm_group_join(arena, "world", 0, 1, 30'000, &group) == 0);
        CHECK(client.step(32, group) == 0);
        REQUIRE(eventually([&] { return sees(*host.daemon, 32); }));
        const auto sessions = sample(*host.daemon);
        CHECK(sessions[0].pid == ::getpid());
        CHECK(sessions[0].label == "trainer");
        CHECK(sessions[0].image.loss == 0.25);
        CHECK(sessions[0].image.group_id == fabricshm_group_id(group));
        CHECK(sessions[0].image.world == 1);
        CHECK_FALSE(sessions[0].stale);

        CHECK(client.directives().serial == 0);
        const std::uint64_t id = sessions[0].session_id;
        REQUIRE(eventually([&] { return host.daemon->pages().direct(id, order(1, 8)).ok(); }));
        REQUIRE(eventually([&] { return client.directives().serial == 1; }));
        CHECK(client.directives().sync_interval == 8);
        CHECK(client.step(32) == 0);
        CHECK(sample(*host.daemon)[0].image.directive_serial == 1);
    }

    TEST_CASE("a step without a daemon is counted, and all are reported to the next daemon") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        auto first = std::make_unique<DaemonThread>(options);
        REQUIRE(first->daemon);
        Client client(options.socket_path);
        CHECK(client.step(1) == 0);
        REQUIRE(eventually([&] { return sees(*first->daemon, 1); }));
        const std::uint64_t id = sample(*first->daemon)[0].session_id;
        REQUIRE(eventually([&] { return first->daemon->pages().direct(id, order(7, 4)).ok(); }));
        REQUIRE(eventually([&] { return client.directives().sync_interval == 4; }));
        first.reset();
        for (int i = 0; i < 100; ++i) CHECK(client.step(1) == 0);
        CHECK(client.directives().sync_interval == 4);

        DaemonThread second(options);
        REQUIRE(second.daemon);
        REQUIRE(eventually([&] { return sees(*second.daemon, 101); }));
        CHECK(client.directives().sync_interval == 4);
        REQUIRE(eventually([&] { return second.daemon->pages().direct(id, order(1, 2)).ok(); }));
        REQUIRE(eventually([&] { return client.directives().sync_interval == 2; }));
    }

    TEST_CASE("what a session reads of its shards is seen, under the names that the daemon has") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.sampling.period = std::chrono::milliseconds(10);
        options.sampling.details_every = 1;
        DaemonThread host(options);
        REQUIRE(host.daemon);
        Client client(options.socket_path);
        fabricshm_arena* arena = nullptr;
        fabricshm_shard* shard = nullptr;
        const std::int64_t count = 1024;
        REQUIRE(fabricshm_arena_open(client.session, "job", 0, 0, &arena) == 0);
        REQUIRE(fabricshm_shard_create(arena, "s", FABRICSHM_F32, 1, &count, &shard) == 0);
        std::uint64_t reads = 0;
        Sample seen;
        CHECK(eventually([&] {
            fabricshm_shard_view view{};
            if (fabricshm_shard_read(shard, 0, 0, &view) != 0) return false;
            if (fabricshm_shard_release(shard, &view) != 0) return false;
            ++reads;
            seen = host.daemon->sampler().latest();
            return seen.sessions.size() == 1 && !seen.sessions[0].shards.empty();
        }));
        REQUIRE(seen.sessions.size() == 1);
        REQUIRE(seen.sessions[0].shards.size() == 1);
        const fabricshm::ShardReads told = seen.sessions[0].shards[0];
        const ShardView view = host.daemon->snapshot().shards.at(0);
        CHECK(told.arena == view.arena_id);
        CHECK(told.shard == view.id);
        CHECK(told.reads >= 1);
        CHECK(told.reads <= reads);
        CHECK(told.bytes == told.reads * 4096);
        fabricshm_shard_close(shard);
        CHECK(eventually([&] { return sample(*host.daemon)[0].image.shards[0].reads == reads; }));
    }

    TEST_CASE("a page goes with its session") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        // Its goodbye is heard, whatever it had asked for just before.
        options.adopt_grace = std::chrono::hours(1);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        {
            Client client(options.socket_path);
            CHECK(client.step(1) == 0);
            REQUIRE(eventually([&] { return sees(*host.daemon, 1); }));
        }
        CHECK(eventually([&] { return sample(*host.daemon).empty(); }));
    }

    TEST_CASE("wrong arguments are refused by name, and so is a forked child") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        Client client(options.socket_path);
        fabricshm_step_info info = fabricshm_step_info_make(1);
        CHECK(fabricshm_step(nullptr, &info) == FABRICSHM_EINVAL);
        CHECK(fabricshm_step(client.session, nullptr) == 0);
        info.struct_size = 8;
        CHECK(fabricshm_step(client.session, &info) == FABRICSHM_EINVAL);
        info = fabricshm_step_info_make(1);
        info.compute_ns = -2;
        CHECK(fabricshm_step(client.session, &info) == FABRICSHM_EINVAL);
        CHECK(std::string(fabricshm_error_text()).find("compute_ns") != std::string::npos);
        fabricshm_directive directive{};
        CHECK(fabricshm_directives(client.session, nullptr) == FABRICSHM_EINVAL);
        // A caller of a later version reads fields that this library has never heard of.
        struct {
            fabricshm_directive known;
            std::uint64_t later = ~std::uint64_t{0};
        } newer{};
        newer.known.struct_size = sizeof newer;
        CHECK(fabricshm_directives(client.session, &newer.known) == FABRICSHM_OK);
        CHECK(newer.later == 0);
        CHECK(newer.known.struct_size == sizeof newer);
        struct {
            fabricshm_quota known;
            std::uint64_t later = ~std::uint64_t{0};
        } newer_quota{};
        newer_quota.known.struct_size = sizeof newer_quota;
        CHECK(fabricshm_quotas(client.session, &newer_quota.known) == FABRICSHM_OK);
        CHECK(newer_quota.later == 0);
        CHECK(newer_quota.known.struct_size == sizeof newer_quota);
        CHECK(fabricshm_quotas(client.session, nullptr) == FABRICSHM_EINVAL);
        CHECK(fabricshm_directives(client.session, &directive) == FABRICSHM_EINVAL);
        CHECK(fabricshm_group_id(nullptr) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            info = fabricshm_step_info_make(1);
            ::_exit(fabricshm_step(client.session, &info) == FABRICSHM_ECLOSED ? 0 : 1);
        }
        int status = -1;
        CHECK(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
}
