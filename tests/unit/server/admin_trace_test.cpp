#include "fabricd/server/admin_trace.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <semaphore>
#include <string>
#include <utility>

#include "libfabricshm/base/tick_clock.hpp"
#include "libfabricshm/os/page_file.hpp"

using namespace fabricd;
using admin::v1::TraceReply;

namespace {

constexpr std::int64_t kHourNs = 3'600'000'000'000;

std::unique_ptr<JobTrace> trace_of_an_hour(
    std::function<bool()> is_alive, const std::vector<fabricshm::TraceRecord>& records = {},
    std::function<void(const std::string&)> warn = [](const std::string&) {}) {
    auto file =
        fabricshm::make_page_file("trace", fabricshm::kTraceFileBytes,
                                  fabricshm::PageAccess::kReadWrite, fabricshm::format_trace)
            .value();
    const auto writer =
        fabricshm::Mapping::map(file.descriptor, 0, fabricshm::kTraceFileBytes, {}).value();
    const std::int64_t now = fabricshm::monotonic_clock_ns();
    for (fabricshm::TraceRecord record : records) {
        record.begin_ns += now;
        record.arrive_ns += now;
        record.end_ns += now;
        fabricshm::write_trace(writer.data(), record);
    }
    const fabricshm::TraceReader reader(file.mapping.data());
    std::vector<TracedSession> sessions;
    sessions.push_back({7, 100, "rank", std::move(file.mapping), reader, {}, 0});
    return std::make_unique<JobTrace>(std::move(sessions), TraceSpan{now, now + kHourNs, 0},
                                      std::function<void()>(), std::move(is_alive),
                                      std::move(warn));
}

bool at_once(std::chrono::milliseconds) {
    return true;
}

}  // namespace

TEST_SUITE("server.admin_trace") {
    TEST_CASE("a trace ends, and says so, when the last process of its job is gone") {
        int asked = 0;
        const auto trace = trace_of_an_hour([&] { return ++asked < 2; });
        std::string ended;
        int replies = 0;
        write_trace(
            *trace,
            [&](const TraceReply& reply) {
                CHECK(ended.empty());  // it is in the last one
                ended = reply.ended_early();
                return ++replies < 1'000'000;
            },
            at_once, std::chrono::milliseconds(1));
        CHECK(ended.find("has ended") != std::string::npos);
        CHECK(asked == 2);
    }

    TEST_CASE("records that can't be go to no client, and are named in the log when it is over") {
        const auto record = [](std::uint64_t epoch, std::int64_t begin_ns, std::int64_t end_ns) {
            fabricshm::TraceRecord made{};
            made.group_id = 3;
            made.world = 2;
            made.epoch = epoch;
            made.begin_ns = made.arrive_ns = begin_ns;
            made.end_ns = end_ns;
            return made;
        };
        std::vector<std::string> lines;
        const auto trace =
            trace_of_an_hour([] { return true; },
                             {record(5, 10, 20), record(6, -5, 30), record(6, 15, 30),
                              record(4, 30, 40), record(7, 50, 2 * kHourNs), record(6, 30, 40)},
                             [&](const std::string& line) { lines.push_back(line); });
        int replies = 0, records = 0;
        std::uint64_t senseless = 0;
        write_trace(
            *trace,
            [&](const TraceReply& reply) {
                for (const auto& session : reply.sessions()) {
                    records += session.records_size();
                    senseless = session.senseless();
                }
                return ++replies < 3;
            },
            at_once);
        CHECK(records == 2 * static_cast<int>(fabricshm::kTraceWords));
        CHECK(senseless == 4);
        CHECK(lines == std::vector<std::string>{"trace: session 7 (pid 100) wrote records that "
                                                "can't be; 4 of them were left out"});
    }

    TEST_CASE("a trace ends with its daemon, and says so in its last reply") {
        const auto trace = trace_of_an_hour([] { return true; });
        std::string ended;
        int pauses = 0;
        write_trace(
            *trace,
            [&](const TraceReply& reply) {
                CHECK(ended.empty());
                ended = reply.ended_early();
                return true;
            },
            [&](std::chrono::milliseconds) { return ++pauses < 3; });
        CHECK(ended == "fabricd has ended it");
        CHECK(pauses == 3);
    }

    TEST_CASE("a trace ends with its client") {
        const auto trace = trace_of_an_hour([] { return true; });
        int replies = 0;
        write_trace(
            *trace, [&](const TraceReply&) { return ++replies < 3; }, at_once);
        CHECK(replies == 3);
    }

    TEST_CASE("a client that is quick is not given up, however much it takes") {
        constexpr std::chrono::milliseconds kLongest(50);
        // Again where this thread lost its processor in a write: that one was slow.
        fabricshm::Duration slowest = kLongest;
        while (slowest >= kLongest) {
            std::atomic<int> cancels{0};
            StallWatch watch(kLongest, [&] { ++cancels; });
            slowest = {};
            const auto begin = fabricshm::Clock::now();
            for (auto before = begin; before - begin < 3 * kLongest;) {
                CHECK(watch.watch([] { return true; }));
                const auto after = fabricshm::Clock::now();
                slowest = std::max(slowest, after - before);
                before = after;
            }
            if (slowest < kLongest) CHECK(cancels == 0);
        }
    }

    TEST_CASE("a client that takes nothing is given up after a while") {
        std::binary_semaphore cancelled(0);
        std::atomic<int> cancels{0};
        StallWatch watch(std::chrono::milliseconds(50), [&] {
            ++cancels;
            cancelled.release();
        });
        // The write ends because the call is cancelled, as gRPC's does.
        CHECK_FALSE(watch.watch([&] {
            CHECK(cancelled.try_acquire_for(std::chrono::seconds(30)));
            return false;
        }));
        CHECK(cancels == 1);
    }

    TEST_CASE("a watch whose client was never slow ends at once") {
        bool cancelled = false;
        {
            StallWatch watch(std::chrono::hours(1), [&] { cancelled = true; });
            CHECK(watch.watch([] { return true; }));
        }
        CHECK_FALSE(cancelled);
    }
}
