#include "fabricd/ctl/chrome_trace.hpp"

#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "libfabricshm/collective/kinds.hpp"

using namespace fabricd;
using fabricshm::TraceRecord;
using nlohmann::json;

namespace {

constexpr TraceSpan kSpan{1'000'000, 9'000'000'000, 1'700'000'000'000'000'000};

TraceRecord operation(std::uint16_t rank, std::uint64_t epoch, std::int64_t begin_us,
                      std::int64_t arrive_us, std::int64_t end_us) {
    TraceRecord record{};
    record.group_id = 7;
    record.epoch = epoch;
    record.bytes = 64;
    record.begin_ns = kSpan.began_ns + begin_us * 1000;
    record.arrive_ns = kSpan.began_ns + arrive_us * 1000;
    record.end_ns = kSpan.began_ns + end_us * 1000;
    record.kind = static_cast<std::uint8_t>(fabricshm::Kind::kAllreduce);
    record.rank = rank;
    record.world = 2;
    return record;
}

struct Written {
    std::string text;
    ChromeTrace trace;
    explicit Written(const std::string& job = "mnist",
                     std::uint64_t max_bytes = ChromeTrace::kMaxBytes)
        : trace(
              job, kSpan, [this](std::string_view more) { text += more; }, max_bytes) {}
    void add(std::uint64_t session, std::vector<TraceRecord> records) {
        trace.add({session, 100, "label", std::move(records), 0, 0});
    }
    json finish() {
        trace.finish();
        return json::parse(text);
    }
};

std::vector<json> events_of(const json& all, const std::string& phase) {
    std::vector<json> events;
    for (const json& event : all["traceEvents"]) {
        if (event["ph"] == phase) events.push_back(event);
    }
    return events;
}

}  // namespace

TEST_SUITE("ctl.chrome_trace") {
    TEST_CASE(
        "an operation is a slice, its wait one inside, and what is between two is computing") {
        Written written;
        written.add(1, {operation(0, 5, 10, 14, 20), operation(0, 6, 50, 50, 60)});
        const json all = written.finish();
        const auto slices = events_of(all, "X");
        REQUIRE(slices.size() == 4);
        CHECK(slices[0]["name"] == "allreduce");
        CHECK(slices[0]["ts"] == 10.0);
        CHECK(slices[0]["dur"] == 10.0);
        CHECK(slices[0]["args"]["bytes"] == 64);
        CHECK(slices[0]["args"]["epoch"] == 5);
        CHECK(slices[1]["name"] == "wait");
        CHECK(slices[1]["dur"] == 4.0);
        CHECK(slices[2]["name"] == "compute");
        CHECK(slices[2]["ts"] == 20.0);
        CHECK(slices[2]["dur"] == 30.0);
        CHECK(all["otherData"]["operations"] == 2);
    }

    TEST_CASE("arrows go from the last rank to the others, once all were seen") {
        Written written;
        written.add(1, {operation(0, 5, 10, 30, 40)});
        CHECK(written.text.find("last to arrive") == std::string::npos);
        written.add(2, {operation(1, 5, 30, 30, 39)});
        const json all = written.finish();
        const auto from = events_of(all, "s"), to = events_of(all, "f");
        REQUIRE(from.size() == 1);
        REQUIRE(to.size() == 1);
        CHECK(from[0]["id"] == to[0]["id"]);
        CHECK(from[0]["tid"] == 2);
        CHECK(from[0]["ts"] == 30.0);
        CHECK(to[0]["tid"] == 1);
        CHECK(to[0]["ts"] == 30.0);
        CHECK(to[0]["bp"] == "e");
    }

    TEST_CASE("tracks have the group's name where there is one, and errors those of the C ABI") {
        Written written;
        written.trace.name_groups(
            [](std::uint64_t group) { return group == 7 ? std::string("world") : std::string(); });
        auto failed = operation(0, 5, 10, 10, 20);
        failed.failed = 6;
        auto other = operation(1, 0, 10, 10, 20);
        other.group_id = 8;
        other.failed = 999;
        written.add(1, {failed, other});
        written.trace.finish("the job is gone");
        const json all = json::parse(written.text);
        std::map<int, std::string> names;
        for (const json& event : events_of(all, "M")) {
            if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
        }
        CHECK(names == std::map<int, std::string>{{1, "rank 0 of world (2 ranks)"},
                                                  {2, "rank 1 of group 8 (2 ranks)"}});
        const auto slices = events_of(all, "X");
        REQUIRE(slices.size() == 2);
        CHECK(slices[0]["args"]["error"] == "FABRICSHM_EPEER");
        CHECK(slices[1]["args"]["error"] == "code 999");
        CHECK(all["otherData"]["ended_early"] == "the job is gone");
    }

    TEST_CASE("operations that are missing are a gap and no computing") {
        Written written;
        written.add(1, {operation(0, 5, 10, 10, 20), operation(0, 9, 50, 50, 60)});
        const auto slices = events_of(written.finish(), "X");
        REQUIRE(slices.size() == 3);
        CHECK(slices[1]["name"] == "not recorded");
        CHECK(slices[1]["args"]["operations"] == 3);
    }

    TEST_CASE("what can't be is left out and counted") {
        Written written;
        auto early = operation(0, 6, 5, 5, 30);    // begins before the last one ended
        auto other = operation(1, 7, 40, 40, 50);  // another rank on the same track
        auto kind = operation(0, 8, 60, 60, 70);
        kind.kind = 200;
        auto outside = operation(0, 9, 80, 80, 90);
        outside.begin_ns = 1;
        auto again = operation(0, 5, 100, 100, 110);
        written.add(1, {operation(0, 5, 10, 10, 20), early, other, kind, outside, again});
        const json all = written.finish();
        CHECK(events_of(all, "X").size() == 1);
        CHECK(written.trace.operations() == 1);
        CHECK(written.trace.senseless() == 5);
    }

    TEST_CASE("a session with many groups gets a bounded number of tracks") {
        Written written;
        for (std::uint64_t group = 1; group <= 1000; ++group) {
            auto record = operation(0, 0, 10, 10, 20);
            record.group_id = group;
            written.add(1, {record});
        }
        CHECK(written.trace.tracks() == 64);
        CHECK(written.trace.ranks() == 1);
        // Programs may have so many.
        CHECK(written.trace.senseless() == 0);
        CHECK(written.trace.without_track() == 936);
    }

    TEST_CASE("a full file ends as JSON, with both ends of each arrow") {
        constexpr std::uint64_t kRoom = 30'000;
        Written written("mnist", kRoom);
        for (int i = 0; i < 1000 && !written.trace.is_full(); ++i) {
            const auto epoch = static_cast<std::uint64_t>(i);
            written.add(1, {operation(0, epoch, 100 * i, 100 * i + 50, 100 * i + 60)});
            written.add(2, {operation(1, epoch, 100 * i + 50, 100 * i + 50, 100 * i + 60)});
        }
        CHECK(written.trace.is_full());
        const json all = written.finish();
        CHECK(written.text.size() <= kRoom);
        CHECK(written.text.size() > kRoom / 2);
        CHECK(written.trace.bytes() == written.text.size());
        CHECK(events_of(all, "s").size() == events_of(all, "f").size());
        CHECK(all["otherData"]["cut"] == true);
    }

    TEST_CASE("decisions of that time are instants, and shares counters") {
        Written written;
        Decision decision;
        decision.id = 3;
        decision.unix_ms = kSpan.unix_ns / 1'000'000 + 2000;
        decision.action = BatchShares{{0.5, 0.5}, {0.75, 0.25}};
        decision.reason = "rank 1 is \"slow\"";
        written.trace.add(decision);
        decision.unix_ms += 3'600'000;
        written.trace.add(decision);
        const json all = written.finish();
        const auto instants = events_of(all, "i"), counters = events_of(all, "C");
        REQUIRE(instants.size() == 1);
        CHECK(instants[0]["ts"] == 2e6);
        CHECK(instants[0]["args"]["why"] == "rank 1 is \"slow\"");
        REQUIRE(counters.size() == 1);
        CHECK(counters[0]["args"]["rank 0"] == 0.75);
    }

    TEST_CASE("names of jobs and labels may hold anything") {
        Written written("<img onerror=\"x\">\n\xff");
        written.trace.add({1, 100, "\"\\\x01", {operation(0, 5, 10, 14, 20)}, 0, 0});
        const json all = written.finish();
        CHECK(events_of(all, "M").size() == 3);
    }
}
