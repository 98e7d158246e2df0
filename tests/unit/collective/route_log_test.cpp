// What FABRIC_LOG=debug says of the ways that operations go.

#include "libfabricshm/collective/route_log.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <string>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

std::mutex g_mutex;
std::vector<std::string> g_lines;

void keep_line(LogLevel, const char* line) {
    const std::lock_guard lock(g_mutex);
    g_lines.emplace_back(line);
}

int lines_with(const std::string& part) {
    const std::lock_guard lock(g_mutex);
    int found = 0;
    for (const auto& line : g_lines) found += line.find(part) != std::string::npos ? 1 : 0;
    return found;
}

/// `times` allreduces of `count` floats on two ranks, with what the log says meanwhile.
void run(std::uint64_t count, int times, LogLevel level) {
    g_lines.clear();
    set_log_sink(keep_line);
    set_log_level(level);
    const int failed = failures_in_threads(2, 8 * kMiB, [&](RankContext& context) {
        Call call;
        call.kind = Kind::kAllreduce;
        call.dtype = kernels::DType::kF32;
        call.count = count;
        call.input = context.place(context.rank, count * 4);
        call.output = const_cast<std::byte*>(call.input);
        for (int i = 0; i < times; ++i) {
            call.deadline = Clock::now() + std::chrono::seconds(50);
            if (!context.group.run(call).ok()) return false;
        }
        return true;
    });
    set_log_level(LogLevel::kWarning);
    set_log_sink(nullptr);
    CHECK(failed == 0);
}

}  // namespace

TEST_SUITE("collective.route_log") {
    TEST_CASE("each rank says once which way a kind of operation goes") {
        run(2, 50, LogLevel::kDebug);
        CHECK(lines_with("rank 0 of 2: allreduce of 8 bytes") == 1);
        CHECK(lines_with("rank 1 of 2: allreduce of 8 bytes") == 1);
        CHECK(lines_with("goes by tiny lines") == 2);
        run(100'000, 3, LogLevel::kDebug);
        CHECK(lines_with("allreduce of 400000 bytes") == 2);
        CHECK(lines_with("goes by direct") == 2);
    }

    TEST_CASE("at other levels nothing is said") {
        run(3, 2, LogLevel::kInfo);
        CHECK(lines_with("goes by") == 0);
    }
}
