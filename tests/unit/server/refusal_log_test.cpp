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
}
