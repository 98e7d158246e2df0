// One rank is killed, and while the survivors shrink the group a second one is, at each point of
// the way: the other two end up in a group of their own that works.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "libfabricshm/base/fault_point.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using namespace test_support;

namespace {

constexpr int kWorld = 4;
constexpr int kFirst = 1;   // to be killed
constexpr int kSecond = 2;  // during the shrink
constexpr std::int64_t kTimeoutMs = 60'000;

// Sums a one from each member.
int sum_up(fabricshm_group* group, float* sum) {
    std::array<float, 300> data;
    data.fill(1);
    const int code = fabricshm_allreduce(group, data.data(), data.data(), data.size(),
                                         FABRICSHM_F32, FABRICSHM_SUM);
    *sum = data.back();
    return code;
}

// Shrinks until the group works.
int go_on(fabricshm_group* group) {
    for (int attempt = 0; attempt < 10; ++attempt) {
        fabricshm_group* smaller = nullptr;
        if (fabricshm_group_shrink(group, kTimeoutMs, &smaller) == FABRICSHM_OK) {
            fabricshm_group_leave(group);
            group = smaller;
        }
        float sum = 0;
        if (sum_up(group, &sum) != FABRICSHM_OK) continue;
        return sum == 2 && fabricshm_group_world(group) == 2 ? 0 : 11;
    }
    return failed(12);
}

int live(const Daemon& daemon, Gate& through, int rank, const char* point) {
    const Job job(daemon.socket(), 96 << 20);
    fabricshm_group* group = nullptr;
    if (!job.ok) return 1;
    if (fabricshm_group_join(job.arena, "world", rank, kWorld, kTimeoutMs, &group) != 0) {
        return failed(2);
    }
    float sum = 0;
    if (sum_up(group, &sum) != FABRICSHM_OK || sum != kWorld) return failed(3);
    // Once all are through: a rank that is still in the first sum may hear of the death there.
    if (rank == kFirst) return through.wait(kWorld - 1) ? ::raise(SIGKILL) : 4;
    through.open();
    if (sum_up(group, &sum) != FABRICSHM_EPEER) return failed(4);
    if (rank == kSecond) fabricshm::fault::arm(point);
    return go_on(group);
}

}  // namespace

TEST_SUITE("crash.client.shrink") {
    TEST_CASE("a second rank that is killed while the survivors shrink does not end the job") {
        for (const char* point :
             {"shrink.retired", "group.answered", "group.announced", "group.attached"}) {
            const Daemon daemon;
            Gate through;
            const auto codes =
                run_children(kWorld, [&](int rank) { return live(daemon, through, rank, point); });
            const bool killed = codes[kFirst] == 128 + SIGKILL && codes[kSecond] == 128 + SIGKILL;
            const bool lives = codes[0] == 0 && codes[3] == 0;
            if (!killed || !lives) MESSAGE("daemon: ", daemon.log());
            INFO(std::string(point), ": ", codes[0], " ", codes[1], " ", codes[2], " ", codes[3]);
            CHECK(killed);
            CHECK(lives);
        }
    }
}
