// What a session gets that reads late, or never.

#include <doctest/doctest.h>

#include <mutex>
#include <string>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/wire_client.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Errc;
using fabricshm::kMiB;
using test_support::DaemonThread;
using test_support::options_in;
using test_support::TemporaryDirectory;
using test_support::WireClient;
namespace proto = fabricshm::proto;

namespace {

std::mutex g_mutex;
std::string g_lines;  // of the log

void keep_line(fabricshm::LogLevel, const char* line) {
    const std::lock_guard lock(g_mutex);
    g_lines += line;
    g_lines += '\n';
}

/// What the log says while it lives.
struct LogKept {
    LogKept() {
        fabricshm::set_log_sink(keep_line);
        const std::lock_guard lock(g_mutex);
        g_lines.clear();
    }
    ~LogKept() { fabricshm::set_log_sink(nullptr); }
    static bool says(const std::string& words) {
        const std::lock_guard lock(g_mutex);
        return g_lines.find(words) != std::string::npos;
    }
};

proto::Message region_request(proto::Type type, std::uint64_t arena) {
    proto::Message request = proto::make_request(type, 1);
    request.region.arena_id = arena;
    request.region.bytes = 4096;
    return request;
}

proto::Message wait_for_tensor(std::uint64_t arena, std::int64_t timeout_ms) {
    proto::Message request = proto::make_request(proto::Type::kTensorOpen, 1);
    request.tensor.region.arena_id = arena;
    [[maybe_unused]] const auto set = proto::set_name(request.tensor.name, "never", "name");
    request.tensor.timeout_ms = timeout_ms;
    return request;
}

}  // namespace

TEST_SUITE("server.outbox") {
    TEST_CASE("a session that reads late gets each of its replies, also those with descriptors") {
        const TemporaryDirectory directory;
        const DaemonOptions options = options_in(directory);
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        const auto arena = alice.open_arena("job", kMiB).value();
        // As of so many threads, each of which waits for one reply: below 166, which is what fits
        // into the client's own buffer.
        constexpr int kThreads = 120;
        for (int i = 0; i < kThreads; ++i) {
            const bool opens = i % 4 == 3;
            REQUIRE(alice
                        .send(opens ? test_support::arena_request("job", 0)
                                    : region_request(proto::Type::kRegionCreate, arena.arena_id))
                        .ok());
        }
        REQUIRE(host.eventually([](const Snapshot& all) { return all.totals.regions >= 8; }));
        for (int i = 0; i < kThreads; ++i) {
            CAPTURE(i);
            alice.descriptor.reset();
            const auto reply = alice.receive();
            REQUIRE(reply.ok());
            CHECK(reply->header.status == 0);
            CHECK(bool(alice.descriptor) == (i % 4 == 3));
        }
        CHECK(host.daemon->snapshot({}).totals.regions == kThreads * 3 / 4);
        CHECK(alice.close_arena(arena.arena_id).ok());
    }

    TEST_CASE("one that never reads is asked for nothing more, and named in the log") {
        const LogKept log;
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.replies.named_after = 10ms;
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto bob = WireClient::attach(options.socket_path).value();
        auto mallory = WireClient::attach(options.socket_path, "mallory").value();
        const auto arena = mallory.open_arena("job", 16 * kMiB).value();
        const auto request = region_request(proto::Type::kRegionCreate, arena.arena_id);
        std::uint64_t sent = 0;
        while (mallory.socket().send(proto::bytes_of(request), {}, {}).ok()) ++sent;
        const std::string name = "session " + std::to_string(mallory.session.session_id) +
                                 " of pid " + std::to_string(::getpid()) + ",";
        REQUIRE(host.eventually([&](const Snapshot&) { return LogKept::says(name); }));
        CHECK(LogKept::says("does not read its replies"));
        // Its requests wait in its own socket.
        CHECK(host.daemon->snapshot({}).totals.regions < static_cast<long>(sent));
        CHECK(bob.open_arena("other", kMiB).ok());
        // It is served on when it reads.
        for (std::uint64_t i = 0; i < sent; ++i) REQUIRE(mallory.receive().ok());
        CHECK(mallory.close_arena(arena.arena_id).ok());
        mallory.bye();
        bob.bye();
        CHECK(host.eventually([](const Snapshot& all) { return all.sessions.empty(); }));
    }

    TEST_CASE("answers to what it let wait are kept up to a limit, which ends its connection") {
        const LogKept log;
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.replies.max_held = 20;
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto mallory = WireClient::attach(options.socket_path, "mallory").value();
        const auto arena = mallory.open_arena("job", kMiB).value();
        // All of them are read before the first one ends: what is held comes from these alone.
        constexpr int kWaits = 100;
        for (int i = 0; i < kWaits; ++i) {
            REQUIRE(mallory.send(wait_for_tensor(arena.arena_id, 300)).ok());
        }
        REQUIRE(host.eventually([&](const Snapshot&) {
            return LogKept::says("session " + std::to_string(mallory.session.session_id));
        }));
        CHECK(LogKept::says("it does not read its replies"));
        int read = 0;
        while (read < kWaits && mallory.receive().ok()) ++read;
        CHECK(read < kWaits);
    }

    TEST_CASE("a process that ends with replies unread leaves nothing behind") {
        const TemporaryDirectory directory;
        DaemonOptions options = options_in(directory);
        options.adopt_grace = 1h;
        DaemonThread host(options);
        REQUIRE(host.daemon);
        auto alice = WireClient::attach(options.socket_path).value();
        const auto arena = alice.open_arena("job", kMiB).value();
        for (int i = 0; i < 100; ++i) {
            REQUIRE(alice.send(region_request(proto::Type::kRegionCreate, arena.arena_id)).ok());
        }
        alice.bye();
        alice.socket().reset();
        CHECK(host.eventually([](const Snapshot& all) { return all.sessions.empty(); }));
    }
}
