#include "fabricd/ctl/dashboard/history.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

Picture picture_of(std::uint64_t used, std::vector<std::pair<std::string, double>> rates = {}) {
    Picture picture;
    picture.status.pool.used_bytes = used;
    for (const auto& [label, rate] : rates) {
        SessionSample session;
        session.label = label;
        session.stale = false;
        session.rates.samples_per_s = rate;
        picture.telemetry.sessions.push_back(session);
    }
    return picture;
}

TEST_SUITE("ctl.dashboard.history") {
    TEST_CASE("each picture is a point of each curve, and the ranks of a job are one curve") {
        History history;
        history.add(1000, picture_of(10, {{"mnist", 100}, {"mnist", 50}}));
        history.add(2000, picture_of(20, {{"mnist", 90}, {"mnist", 60}, {"other", 1}}));
        const Json json = history.json();
        CHECK(json["unix_ms"] == Json({1000, 2000}));
        CHECK(json["series"]["pool_used_bytes"] == Json({10.0, 20.0}));
        CHECK(json["series"]["samples_per_s/mnist"] == Json({150.0, 150.0}));
        CHECK(json["series"]["samples_per_s/other"] == Json({nullptr, 1.0}));
    }

    TEST_CASE("a job that is away leaves a gap, and its curve goes with its last point") {
        History history;
        history.add(0, picture_of(1, {{"short", 7}}));
        history.add(1, picture_of(1));
        history.add(2, picture_of(1, {{"short", 9}}));
        CHECK(history.json()["series"]["samples_per_s/short"] == Json({7.0, nullptr, 9.0}));
        for (std::size_t i = 0; i < History::kMaxPoints - 1; ++i) {
            history.add(static_cast<std::int64_t>(3 + i), picture_of(1));
        }
        CHECK(history.json()["series"].contains("samples_per_s/short"));
        history.add(10'000, picture_of(1));
        CHECK_FALSE(history.json()["series"].contains("samples_per_s/short"));
    }

    TEST_CASE("it keeps the newest points, and all lists are of one length") {
        History history;
        for (std::size_t i = 0; i < History::kMaxPoints + 7; ++i) {
            const std::string label = "job" + std::to_string(i % 3);
            history.add(static_cast<std::int64_t>(i), picture_of(i, {{label, 1}}));
        }
        const Json json = history.json();
        REQUIRE(json["unix_ms"].size() == History::kMaxPoints);
        CHECK(json["unix_ms"].front() == 7);
        CHECK(json["series"]["pool_used_bytes"].front() == 7.0);
        CHECK(json["series"]["pool_used_bytes"].back() == double(History::kMaxPoints + 6));
        for (const auto& [name, values] : json["series"].items()) {
            CAPTURE(name);
            CHECK(values.size() == History::kMaxPoints);
        }
    }

    TEST_CASE("labels that clients choose do not make more curves than the bound") {
        History history;
        std::vector<std::pair<std::string, double>> rates;
        for (std::size_t i = 0; i < 3 * History::kMaxSeries; ++i) {
            rates.emplace_back("job" + std::to_string(i), 1.0);
        }
        history.add(0, picture_of(1, rates));
        CHECK(history.json()["series"].size() == History::kMaxSeries);
    }
}

}  // namespace
