#include "fabricd/server/refusal_log.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "libfabricshm/base/log.hpp"

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kNow{1h};
std::vector<std::string> g_lines;

void keep(fabricshm::LogLevel, const char* line) {
    g_lines.push_back(line);
}

}  // namespace

TEST_SUITE("server.refusal_log") {
    TEST_CASE("each refusal is one line that says which client, what and why") {
        fabricshm::set_log_sink(keep);
        g_lines.clear();
        RefusalLog log;
        log.refused("arena_open", 77, 1000, {Errc::kDenied, 0, "open"}, kNow);
        REQUIRE(g_lines.size() == 1);
        CHECK(g_lines[0] == "refused arena_open of pid 77, uid 1000: open: permission denied");
        fabricshm::set_log_sink(nullptr);
    }

    TEST_CASE("a flood is cut off, and counted in the next line that is written") {
        fabricshm::set_log_sink(keep);
        g_lines.clear();
        RefusalLog log;
        const Error error{Errc::kInvalid, 0, "x"};
        for (int i = 0; i < RefusalLog::kBurst + 25; ++i) log.refused("hello", 1, 2, error, kNow);
        CHECK(g_lines.size() == RefusalLog::kBurst);
        log.refused("hello", 1, 2, error, kNow + 1s);
        REQUIRE(g_lines.size() == RefusalLog::kBurst + 2);
        CHECK(g_lines[RefusalLog::kBurst] == "25 refusals were not logged");
        int more = 0;
        while (log.admits(kNow + 1s)) ++more;
        CHECK(more < RefusalLog::kPerSecond + 1);
        fabricshm::set_log_sink(nullptr);
    }

    TEST_CASE("what was left out is said within a second, also when nothing comes after it") {
        fabricshm::set_log_sink(keep);
        g_lines.clear();
        RefusalLog log("ends of sessions");
        int lines = 0;
        for (int i = 0; i < RefusalLog::kBurst + 7; ++i) lines += log.begins_line(kNow) ? 1 : 0;
        CHECK(lines == RefusalLog::kBurst);
        log.tell_left_out(kNow + 999ms);
        CHECK(g_lines.empty());
        log.tell_left_out(kNow + 1s);
        log.tell_left_out(kNow + 2s);
        CHECK(g_lines == std::vector<std::string>{"7 ends of sessions were not logged"});
        // A flood that goes on has one such line per second.
        for (int i = 0; i < 1000; ++i) log.begins_line(kNow + 2s);
        log.tell_left_out(kNow + 2s);
        CHECK(g_lines.size() == 1);
        fabricshm::set_log_sink(nullptr);
    }
}
