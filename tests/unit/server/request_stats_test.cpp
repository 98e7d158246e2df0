#include "fabricd/server/request_stats.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::proto::Type;

TEST_SUITE("server.request_stats") {
    TEST_CASE("a histogram by type, whose buckets hold all that is not longer") {
        RequestStats stats;
        stats.count(Type::kArenaOpen, 500ns);
        stats.count(Type::kArenaOpen, 1us);
        stats.count(Type::kArenaOpen, 2ms);
        stats.count(Type::kArenaOpen, 20s);
        MetricsText text;
        stats.add_to(text);
        const auto has = [&](const char* line) {
            CHECK_MESSAGE(text.text().find(line) != std::string::npos, text.text());
        };
        has("# TYPE fabricd_request_seconds histogram\n");
        has("fabricd_request_seconds_bucket{request=\"arena_open\",le=\"1e-06\"} 2\n");
        has("fabricd_request_seconds_bucket{request=\"arena_open\",le=\"0.001\"} 2\n");
        has("fabricd_request_seconds_bucket{request=\"arena_open\",le=\"0.01\"} 3\n");
        has("fabricd_request_seconds_bucket{request=\"arena_open\",le=\"10\"} 3\n");
        has("fabricd_request_seconds_bucket{request=\"arena_open\",le=\"+Inf\"} 4\n");
        has("fabricd_request_seconds_count{request=\"arena_open\"} 4\n");
        has("fabricd_request_seconds_sum{request=\"arena_open\"} 20.002001");
    }

    TEST_CASE("requests of the admin API are counted next to those of sessions, by their name") {
        RequestStats admin;
        admin.count("admin_snapshot", 2ms);
        RequestStats stats;
        stats.count(Type::kArenaOpen, 1us);
        stats.take_admin(admin);
        MetricsText text;
        stats.add_to(text);
        CHECK(text.text().find("fabricd_request_seconds_count{request=\"admin_snapshot\"} 1\n") !=
              std::string::npos);
        CHECK(text.text().find("fabricd_request_seconds_count{request=\"arena_open\"} 1\n") !=
              std::string::npos);
    }

    TEST_CASE("refusals count by request and error") {
        RequestStats stats;
        stats.refused(Type::kRegionCreate, fabricshm::Errc::kNoMemory);
        stats.refused(Type::kRegionCreate, fabricshm::Errc::kNoMemory);
        MetricsText text;
        stats.add_to(text);
        CHECK(text.text().find("fabricd_refusals_total{request=\"region_create\","
                               "error=\"kNoMemory\"} 2\n") != std::string::npos);
    }
}
