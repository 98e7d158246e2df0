#include "fabricd/server/job_trace_start.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <utility>

#include "libfabricshm/proto/codec.hpp"
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

TEST_SUITE("server.job_trace_start") {
    TEST_CASE("the sessions with that arena are asked to write, and to stop when the trace goes") {
        const TemporaryDirectory directory;
        const auto options = options_in(directory);
        DaemonThread thread(options);
        REQUIRE(thread.daemon);
        JobTraces traces(*thread.daemon);
        auto rank = WireClient::attach(options.socket_path, "rank").value();
        REQUIRE(rank.open_arena("job", 1 * kMiB).ok());
        auto trace = traces.begin("job", std::chrono::seconds(60));
        REQUIRE(trace.ok());
        REQUIRE((*trace)->sessions().size() == 1);
        CHECK((*trace)->sessions()[0].label == "rank");
        CHECK((*trace)->span().until_ns - (*trace)->span().began_ns == 60'000'000'000);
        const auto begun = rank.receive();
        REQUIRE(begun.ok());
        CHECK(proto::type_of(begun->header) == proto::Type::kTrace);
        CHECK(begun->trace.bytes == fabricshm::kTraceFileBytes);
        CHECK(begun->trace.until_ns == (*trace)->span().until_ns);
        trace->reset();
        const auto ended = rank.receive();
        REQUIRE(ended.ok());
        CHECK(ended->trace.bytes == 0);
    }

    TEST_CASE("there is one trace at a time, and none of a job that is not there") {
        const TemporaryDirectory directory;
        const auto options = options_in(directory);
        DaemonThread thread(options);
        REQUIRE(thread.daemon);
        JobTraces traces(*thread.daemon);
        auto rank = WireClient::attach(options.socket_path, "rank").value();
        REQUIRE(rank.open_arena("job", 1 * kMiB).ok());
        const auto length = std::chrono::seconds(60);
        CHECK(traces.begin("nosuch", length).error().code == Errc::kNotFound);
        auto first = traces.begin("job", length);
        REQUIRE(first.ok());
        CHECK(traces.begin("job", length).error().code == Errc::kBusy);
        first->reset();
        CHECK(traces.begin("job", length).ok());
    }

    TEST_CASE("a trace is alive until the last of its sessions has ended") {
        const TemporaryDirectory directory;
        const auto options = options_in(directory);
        DaemonThread thread(options);
        REQUIRE(thread.daemon);
        JobTraces traces(*thread.daemon);
        auto rank =
            std::make_unique<WireClient>(WireClient::attach(options.socket_path, "rank").value());
        REQUIRE(rank->open_arena("job", 1 * kMiB).ok());
        const auto trace = traces.begin("job", std::chrono::seconds(60));
        REQUIRE(trace.ok());
        CHECK((*trace)->is_alive());
        REQUIRE(rank->send(proto::make_request(proto::Type::kBye, 900)).ok());
        REQUIRE(thread.eventually([](const Snapshot& now) { return now.totals.sessions == 0; }));
        CHECK_FALSE((*trace)->is_alive());
    }
}
