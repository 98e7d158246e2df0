#include "fabricd/ctl/views.hpp"
#include "libfabricshm/base/version.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/support/documented_fields.hpp"

using namespace fabricd;
using nlohmann::json;

namespace {

Picture sample() {
    Picture picture;
    auto& status = picture.status;
    status.version = FABRIC_VERSION;
    status.pid = 77;
    status.daemon_epoch = 2;
    status.uptime_ms = 90000;
    status.sessions = 3;
    status.sessions_connected = 1;
    status.pool = {"emu", "memfd arenas", 1 << 30, 256 << 20, "cxl_box: read 596 ns"};
    picture.pools = {status.pool};
    picture.arenas = {{7, "small", 4000000000U, 1 << 20, 1 << 19, 0, 1},
                      {8, "large", 0, 1 << 24, 0, 4096, 2}};
    picture.regions = {{7, 1, 3, 4096, 8192, 5, "weights", RegionState::kLive},
                       {7, 2, 1, 16384, 4096, 5, "", RegionState::kQuarantined}};
    picture.sessions = {{5, 100, 0, "trai\xffn", 1500, 8192, true, "gpu0", "", false},
                        {6, 101, 0, "", 10, 0, false, "", "far", true}};
    picture.devices = {
        {{"gpu0", "gpu", 40.5, 50, 2 << 20, 1 << 20, 8, 2000, {}}, true, 2, 1 << 19},
        {{"old", "", 0, 100, 0, 0, 0, 0, {}}, false, 1, 4096},
        {{"hot", "gpu", 1, 100, 1, 1, 1, 1, {}}, true, 1, 0, 0, 0, 0, 0, "ecc,thermal"}};
    picture.groups = {{7, 9, "world", 4, 8, 7, {2, 5}, GroupState::kBroken}};
    return picture;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("ctl.views") {
    TEST_CASE("the status says what matters in words") {
        const std::string text = text_view(sample(), View::kStatus);
        CHECK(has(text, FABRIC_VERSION ", serving, pid 77, up 90 s, start 2"));
        CHECK(has(text, "emulates  cxl_box: read 596 ns\n"));
        CHECK(has(text, "256 MiB of 1 GiB (25 %)"));
        CHECK(has(text, "3 (2 not back yet after a restart)"));
        Picture draining = sample();
        draining.status.draining = true;
        CHECK(has(text_view(draining, View::kStatus), "draining"));
    }

    TEST_CASE("states are shown by name, and one of a newer daemon as unknown") {
        Picture picture = sample();
        CHECK(has(text_view(picture, View::kRegions), "quarantined"));
        CHECK(has(text_view(picture, View::kGroups), "broken"));
        const auto state = [&] {
            return json::parse(json_view(picture, View::kGroups))["groups"][0]["state"];
        };
        CHECK(state() == "broken");
        picture.groups[0].state = GroupState::kUnknown;
        CHECK(has(text_view(picture, View::kGroups), "unknown"));
        CHECK(state() == "unknown");
    }

    TEST_CASE("every view has its rows") {
        const Picture picture = sample();
        CHECK(has(text_view(picture, View::kPools), "25 %"));
        CHECK(has(text_view(picture, View::kArenas), "4000000000"));  // a user without a name
        CHECK(has(text_view(picture, View::kRegions), "weights"));
        CHECK(has(text_view(picture, View::kRegions), "quarantined  -"));
        CHECK(has(text_view(picture, View::kSessions), "given-up"));
        CHECK(has(text_view(picture, View::kGroups), "7/8"));
        CHECK(has(text_view(picture, View::kGroups), "2,5"));
        const std::string devices = text_view(picture, View::kDevices);
        for (const char* cell : {"gpu0", "40.5", "1 MiB", "512 KiB", "50 %", "2 us", "attached"}) {
            CAPTURE(cell);
            CHECK(has(devices, cell));
        }
        CHECK(has(devices, "removed"));
        CHECK(has(devices, "faulty: ecc,thermal"));
        CHECK(text_view(Picture{}, View::kGroups) == "none\n");
    }

    TEST_CASE("top has the largest first") {
        const std::string text = text_view(sample(), View::kTop);
        CHECK(text.find("large") < text.find("small"));
        CHECK(has(text, "memory"));
        CHECK(has(text, "world"));
    }

    TEST_CASE("every view is one line of JSON with the fields that are promised") {
        const Picture picture = sample();
        for (const View view : {View::kStatus, View::kPools, View::kArenas, View::kRegions,
                                View::kSessions, View::kGroups, View::kTop}) {
            const std::string line = json_view(picture, view);
            CHECK_FALSE(has(line, "\n"));
            CHECK(json::accept(line));
        }
        const json status = json::parse(json_view(picture, View::kStatus))["status"];
        CHECK(status["pid"] == 77);
        CHECK(status["pool"]["capacity_bytes"] == 1 << 30);
        const json region = json::parse(json_view(picture, View::kRegions))["regions"][0];
        CHECK(region["offset"] == 4096);
        CHECK(region["tensor_name"] == "weights");
        const json group = json::parse(json_view(picture, View::kGroups))["groups"][0];
        CHECK(group["dead_ranks"] == json({2, 5}));
        const json session = json::parse(json_view(picture, View::kSessions))["sessions"][1];
        CHECK(session["connected"] == false);
        const json top = json::parse(json_view(picture, View::kTop));
        CHECK(top["arenas"].size() == 2);
        CHECK(top["groups"].size() == 1);
    }

    TEST_CASE("top shows which session trains how fast, and leaves out what is unknown") {
        Picture picture = sample();
        CHECK_FALSE(has(text_view(picture, View::kTop), "Training:"));
        picture.telemetry.number = 3;
        for (const int rank : {0, 1, 2}) {
            SessionSample session;
            session.session_id = 10u + static_cast<unsigned>(rank);
            session.label = "train";
            session.image = fabricshm::empty_telemetry();
            session.image.group_id = 5;
            session.image.rank = rank;
            session.image.world = 3;
            session.member = rank != 2;
            session.stale = false;
            session.rates.samples_per_s = rank == 0 ? 300 : 100;
            session.rates.wait_share = 0.25;
            picture.telemetry.sessions.push_back(session);
        }
        picture.telemetry.devices.push_back({"gpu0", "Fake GPU", DeviceKind::kGpu, 0, 8, 0.5});
        picture.telemetry.paths.push_back({5, 0, 1, 7, 12.5e9, 9e9, 110, 300});
        const std::string text = text_view(picture, View::kTop);
        for (const char* cell : {"Training:", "1/3", "25 %", "75 %", "live", "Load:", "gpu0",
                                 "50 %", "Paths", "12.5", "110 ns"}) {
            CAPTURE(cell);
            CHECK(has(text, cell));
        }
        const json telemetry = json::parse(json_view(picture, View::kTop))["telemetry"];
        CHECK(telemetry["training"][0]["share_of_group"] == 0.75);
        CHECK(telemetry["training"][2]["share_of_group"].is_null());
        CHECK(telemetry["training"][0]["loss"].is_null());
        CHECK(telemetry["devices"][0]["memory_used_bytes"].is_null());
        CHECK(telemetry["devices"][0]["busy"] == 0.5);
        CHECK(telemetry["paths"][0]["latency_p99_ns"] == 300);
    }

    TEST_CASE("root has a name") {
        CHECK(user_name(0) == "root");
    }

    TEST_CASE("docs/fabricctl.md has each field of the JSON") {
        Picture picture;
        picture.status.caches.emplace_back();
        picture.pools.emplace_back();
        picture.arenas.emplace_back();
        picture.regions.emplace_back();
        picture.sessions.emplace_back();
        picture.groups.emplace_back();
        picture.devices.emplace_back();
        picture.shards.emplace_back();
        picture.waiting.emplace_back();
        picture.waiting[0].late.emplace_back();
        picture.telemetry.sessions.emplace_back();
        picture.telemetry.devices.emplace_back();
        picture.telemetry.paths.emplace_back();
        const std::pair<View, const char*> views[] = {
            {View::kStatus, "status"},   {View::kPools, "pools"},       {View::kArenas, "arenas"},
            {View::kRegions, "regions"}, {View::kSessions, "sessions"}, {View::kGroups, "groups"},
            {View::kDevices, "devices"}, {View::kShards, "shards"},     {View::kWaiting, "waiting"},
            {View::kTop, "top"}};
        for (const auto& [view, name] : views) {
            CAPTURE(std::string(name));
            const json line = json::parse(json_view(picture, view));
            CHECK(test_support::undocumented(line, name) == "");
        }
    }
}
