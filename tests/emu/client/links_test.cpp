// Ranks under a daemon that emulates a machine: the same results, at least as late as there.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/children.hpp"
#include "tests/support/job.hpp"
#include "tests/support/program.hpp"

using test_support::failed;
using test_support::has;
using test_support::Job;
using test_support::ReadyDaemon;
using test_support::run_children;

namespace {

constexpr std::int64_t kTimeoutMs = 60'000;
constexpr std::uint64_t kArenaBytes = 96 << 20;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

// Sums rank + 1 of all ranks, `times` times; 0 when every sum is right and all of it took at least
// `least_ms`.
int sum_slowly(const Job& job, fabricshm_group* group, std::uint64_t count, int times,
               double least_ms) {
    auto* in = static_cast<float*>(fabricshm_alloc(job.arena, count * sizeof(float)));
    auto* out = static_cast<float*>(fabricshm_alloc(job.arena, count * sizeof(float)));
    if (in == nullptr || out == nullptr) return failed(10);
    const int world = fabricshm_group_world(group);
    std::fill_n(in, count, static_cast<float>(fabricshm_group_rank(group) + 1));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) {
        if (fabricshm_allreduce(group, in, out, count, FABRICSHM_F32, FABRICSHM_SUM) != 0) {
            return failed(11);
        }
    }
    const double taken = milliseconds_since(start);
    const auto wanted = static_cast<float>(world * (world + 1) / 2);
    if (!std::all_of(out, out + count, [&](float x) { return x == wanted; })) return failed(12);
    if (taken < least_ms) {
        std::fprintf(stderr, "%g ms instead of at least %g ms\n", taken, least_ms);
        return 13;
    }
    fabricshm_free(job.arena, in);
    fabricshm_free(job.arena, out);
    return 0;
}

int in_group(const std::string& socket, int rank, int world,
             const std::vector<std::uint64_t>& counts, int times, double least_ms,
             const char* name = "job") {
    const Job job(socket, kArenaBytes, name);
    if (!job.ok) return 1;
    fabricshm_group* group = nullptr;
    if (fabricshm_group_join(job.arena, "world", rank, world, kTimeoutMs, &group) != 0) {
        return failed(2);
    }
    int code = 0;
    for (const std::uint64_t count : counts) {
        if (code == 0) code = sum_slowly(job, group, count, times, least_ms);
    }
    fabricshm_group_leave(group);
    return code;
}

}  // namespace

TEST_SUITE("emu.client.links") {
    TEST_CASE("small operations take at least the way of a word there and back") {
        // 640 ns in slow motion 100: an operation can't be over before 64 us to store a word, and
        // 64 us to read one.
        const ReadyDaemon daemon({"--emulate", "mhd_niagara2", "--emulate-slow-motion", "100"});
        const auto codes = run_children(
            2, [&](int rank) { return in_group(daemon.socket(), rank, 2, {2}, 50, 45 * 0.128); });
        CHECK(codes == std::vector<int>{0, 0});
        CHECK(has(daemon.log(), "emulating mhd_niagara2"));
    }

    TEST_CASE("large operations take at least their bytes, which both ranks send over one link") {
        // 0.101 GB/s in slow motion 100; each rank reads and writes 1 MiB at least, and all of that
        // goes over the link: 2 MiB one way are 20.7 ms.
        const ReadyDaemon daemon({"--emulate", "mhd_niagara2", "--emulate-slow-motion", "100"});
        const auto codes = run_children(2, [&](int rank) {
            return in_group(daemon.socket(), rank, 2, {1 << 18}, 2, 2 * 20.0);
        });
        CHECK(codes == std::vector<int>{0, 0});
    }

    TEST_CASE("two jobs of a daemon share a link, so that their bytes add up") {
        // As above, two jobs of two ranks at the same time. Each alone has 2 MiB one way, 20.7 ms;
        // both together cannot be over before the link has carried all of it.
        constexpr int kTimes = 16;
        const ReadyDaemon daemon({"--emulate", "mhd_niagara2", "--emulate-slow-motion", "100"});
        const auto start = std::chrono::steady_clock::now();
        const auto codes = run_children(4, [&](int child) {
            const char* name = child < 2 ? "one" : "two";
            return in_group(daemon.socket(), child % 2, 2, {1 << 18}, kTimes, 0.0, name);
        });
        CHECK(codes == std::vector<int>{0, 0, 0, 0});
        CHECK(milliseconds_since(start) >= 2 * kTimes * 20.0);
    }

    TEST_CASE("a coherent machine and one from a file give right sums at every size") {
        const std::string file = FABRIC_SOURCE_DIR "/examples/machines/two_hosts.toml";
        for (const std::string& machine : {std::string("cxl_box"), file}) {
            CAPTURE(machine);
            const ReadyDaemon daemon({"--emulate", machine});
            const auto codes = run_children(4, [&](int rank) {
                return in_group(daemon.socket(), rank, 4, {1, 500, 20'000, 300'000}, 2, 0.0);
            });
            CHECK(codes == std::vector<int>{0, 0, 0, 0});
        }
    }

    TEST_CASE("fabricctl shows the machine") {
        const ReadyDaemon daemon({"--emulate", "rdma"});
        const auto ctl = [&](const char* command) {
            return test_support::run_program(
                {FABRICCTL_PATH, command, "--socket=" + daemon.folder() + "/admin.sock"});
        };
        CHECK(has(ctl("status").out, "emulates  rdma: read 4500 ns, 25 GB/s"));
        CHECK(has(ctl("pools").out, "rdma: read 4500 ns"));
    }

    TEST_CASE("a machine that is not known is one line and code 2") {
        const auto started = test_support::run_program({FABRICD_PATH, "--emulate", "abacus"});
        CHECK(started.code == 2);
        CHECK(has(started.error, "\"abacus\" is no preset"));
        CHECK(has(started.error, "(emulate.machine)"));
        const auto list = test_support::run_program({FABRICD_PATH, "--emulate", "list"});
        CHECK(list.code == 0);
        CHECK(has(list.out, "cxl_switch"));
    }
}
