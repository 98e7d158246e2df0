#include "fabricd/ctl/dashboard/history.hpp"

#include <doctest/doctest.h>

#include <cstdint>

#include "fabricd/ctl/json.hpp"

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

void add(History& history, std::int64_t unix_ms, const Picture& picture) {
    history.add(unix_ms, picture, sums_of(picture));
}

Json json_of(const History& history, std::size_t bytes = SIZE_MAX, std::string_view match = {}) {
    PictureQuery query;
    query.match = match;
    return Json::parse(history.text(bytes, query));
}

TEST_SUITE("ctl.dashboard.history") {
    TEST_CASE("each picture is a point of each curve, and the ranks of a job are one curve") {
        History history;
        add(history, 1000, picture_of(10, {{"mnist", 100}, {"mnist", 50}}));
        add(history, 2000, picture_of(20, {{"mnist", 90}, {"mnist", 60}, {"other", 1}}));
        const Json json = json_of(history);
        CHECK(json["unix_ms"] == Json({1000, 2000}));
        CHECK(json["series"]["pool_used_bytes"] == Json({10.0, 20.0}));
        CHECK(json["series"]["samples_per_s/0/mnist"] == Json({150.0, 150.0}));
        CHECK(json["series"]["samples_per_s/0/other"] == Json({nullptr, 1.0}));
    }

    TEST_CASE("a job that is away leaves a gap, and its curve goes with its last point") {
        History history;
        add(history, 0, picture_of(1, {{"short", 7}}));
        add(history, 1, picture_of(1));
        add(history, 2, picture_of(1, {{"short", 9}}));
        CHECK(json_of(history)["series"]["samples_per_s/0/short"] == Json({7.0, nullptr, 9.0}));
        for (std::size_t i = 0; i < History::kMaxPoints - 1; ++i) {
            add(history, static_cast<std::int64_t>(3 + i), picture_of(1));
        }
        CHECK(json_of(history)["series"].contains("samples_per_s/0/short"));
        add(history, 10'000, picture_of(1));
        CHECK_FALSE(json_of(history)["series"].contains("samples_per_s/0/short"));
    }

    TEST_CASE("it keeps the newest points, and all lists are of one length") {
        History history;
        for (std::size_t i = 0; i < History::kMaxPoints + 7; ++i) {
            const std::string label = "job" + std::to_string(i % 3);
            add(history, static_cast<std::int64_t>(i), picture_of(i, {{label, 1}}));
        }
        const Json json = json_of(history);
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
        add(history, 0, picture_of(1, rates));
        CHECK(json_of(history)["series"].size() == History::kMaxSeries);
    }

    TEST_CASE("the rate of all jobs is one curve, whatever there is no room for") {
        History history;
        std::vector<std::pair<std::string, double>> rates;
        for (std::size_t i = 0; i < 3 * History::kMaxSeries; ++i) {
            rates.emplace_back("job" + std::to_string(i), 0.5);
        }
        add(history, 1000, picture_of(1, rates));
        CHECK(json_of(history)["series"]["samples_per_s"] == Json::array({1500.0}));
    }

    TEST_CASE("a text has as many bytes as it may, and the curves of all first") {
        History history;
        std::vector<std::pair<std::string, double>> rates;
        // Quotes, each of which is two bytes of JSON.
        for (std::size_t i = 0; i < History::kMaxSeries; ++i) {
            rates.emplace_back(std::string(57, '"') + std::to_string(i), 0);
        }
        JobSums sums = sums_of(picture_of(1, rates));
        for (std::size_t i = 0; i < History::kMaxPoints; ++i) {
            for (JobSum& job : sums.jobs) job.samples_per_s = 1e9 / static_cast<double>(7 + i);
            history.add(1'700'000'000'000 + static_cast<std::int64_t>(1000 * i), picture_of(i),
                        sums);
        }
        for (const std::size_t bytes : {60'000, 250'000}) {
            CAPTURE(bytes);
            const std::string text = history.text(bytes);
            CHECK(text.size() <= bytes);
            const Json json = Json::parse(text);
            for (const char* name : {"pool_used_bytes", "sessions", "samples_per_s"}) {
                CAPTURE(name);
                CHECK(json["series"].contains(name));
            }
            CHECK(json["series"].size() > 4);
            CHECK(json["all"] == History::kMaxSeries);
        }
    }

    TEST_CASE("of the jobs a text has those that are asked for") {
        History history;
        add(history, 0, picture_of(1, {{"mnist", 100}, {"other", 1}}));
        const Json series = json_of(history, SIZE_MAX, "nis")["series"];
        CHECK(series.contains("samples_per_s/0/mnist"));
        CHECK_FALSE(series.contains("samples_per_s/0/other"));
        CHECK(series["samples_per_s"] == Json::array({101.0}));
        // Not those whose user has it in the number.
        CHECK_FALSE(json_of(history, SIZE_MAX, "0")["series"].contains("samples_per_s/0/mnist"));
    }

    TEST_CASE("jobs of one label and two users are two curves") {
        History history;
        JobSums sums = sums_of(picture_of(1, {{"mnist", 100}, {"mnists", 1}}));
        sums.jobs.push_back(sums.jobs.front());
        sums.jobs.back().uid = 7;
        sums.jobs.back().samples_per_s = 5;
        history.add(0, picture_of(1), sums);
        const Json all = json_of(history)["series"];
        CHECK(all["samples_per_s/0/mnist"] == Json::array({100.0}));
        CHECK(all["samples_per_s/7/mnist"] == Json::array({5.0}));
        const Json one = Json::parse(
            history.text(SIZE_MAX, parse_picture_query("match=mnist&user=0")))["series"];
        CHECK(one.contains("samples_per_s/0/mnist"));
        CHECK_FALSE(one.contains("samples_per_s/7/mnist"));
        CHECK_FALSE(one.contains("samples_per_s/0/mnists"));
    }
}

}  // namespace
