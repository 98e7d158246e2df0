// Ranks of two hosts over one pool, each attached to its own host's fabricd: the owner of the pool
// has ranks 0 and 1, its guest 2 and 3. Rank 3 ends in the middle, then all of the guest's machine.
// FABRIC_TEST_FIRST: the first of this host's ranks. FABRIC_TEST_READY: a file that is made when
// the ranks wait for the end of the guest's machine.

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/job.hpp"

using namespace test_support;

namespace {

constexpr int kWorld = 4;
constexpr int kRanksPerHost = 2;
constexpr int kEnding = 3;  // the rank that dies first
constexpr std::int64_t kTimeoutMs = 120'000;
constexpr const char* kSocket = "/run/fabricd/attach.sock";
// Of a device of 256 MiB: two of them have no room next to each other.
constexpr std::uint64_t kArenaBytes = 160 << 20;

int allreduce(fabricshm_group* group, std::vector<float>& data) {
    fabricshm_call call = fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32, FABRICSHM_SUM,
                                              data.data(), data.data(), data.size());
    call.timeout_ms = kTimeoutMs;
    return fabricshm_run(group, &call);
}

/// Whether ranks add up what each of them has, its number and one, to `expected`, in small and in
/// large operations.
bool adds_up(fabricshm_group* group, int rank, float expected) {
    for (const std::size_t count : {1, 1000, 100'003}) {
        std::vector<float> data(count, static_cast<float>(rank + 1));
        if (allreduce(group, data) != 0) return failed(20) == 0;
        if (std::count(data.begin(), data.end(), expected) != static_cast<long>(count)) {
            return false;
        }
    }
    return true;
}

/// Works until an operation fails by the end of `ending`; the group of the others. Null when it
/// failed otherwise.
fabricshm_group* go_on_without(fabricshm_group* group, int ending, int left) {
    std::vector<float> data(1000, 1.0F);
    int code = 0;
    while (code == 0) code = allreduce(group, data);
    if (code != FABRICSHM_EPEER || fabricshm_error_rank() != ending) {
        (void)failed(21);
        return nullptr;
    }
    fabricshm_group* survivors = nullptr;
    if (fabricshm_group_shrink(group, kTimeoutMs, &survivors) != 0) (void)failed(22);
    return survivors != nullptr && fabricshm_group_world(survivors) == left ? survivors : nullptr;
}

int work_as(int rank) {
    const Job job(kSocket, kArenaBytes, "shared");
    fabricshm_group* group = nullptr;
    if (!job.ok || fabricshm_group_join(job.arena, "vm", rank, kWorld, kTimeoutMs, &group) != 0) {
        return failed(1);
    }
    if (!adds_up(group, rank, 10)) return 2;
    if (rank == kEnding) std::raise(SIGKILL);
    fabricshm_group* three = go_on_without(group, kEnding, 3);
    if (three == nullptr) return 3;
    if (!adds_up(three, rank, 6)) return 4;
    if (rank != 1) std::ofstream(std::getenv("FABRIC_TEST_READY")) << "ready\n";
    // The guest's rank is in here when its machine ends.
    fabricshm_group* two = go_on_without(three, 2, 2);
    if (two == nullptr) return 5;
    return adds_up(two, rank, 3) ? 0 : 6;
}

}  // namespace

TEST_SUITE("vm.shared_pool") {
    TEST_CASE("the ranks of this host work with the other host's, and go on without them") {
        REQUIRE(std::getenv("FABRIC_TEST_READY") != nullptr);
        const int first = std::atoi(std::getenv("FABRIC_TEST_FIRST"));
        const auto codes = run_children(kRanksPerHost, [&](int i) { return work_as(first + i); });
        CHECK(codes == std::vector<int>(kRanksPerHost, 0));
    }

    TEST_CASE("there is no room for a second arena") {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = kSocket;
        options.timeout_ms = kTimeoutMs;
        fabricshm_session* session = nullptr;
        REQUIRE(fabricshm_session_open(&options, &session) == FABRICSHM_OK);
        fabricshm_arena* arena = nullptr;
        CHECK(fabricshm_arena_open(session, "late", kArenaBytes, 0, &arena) == FABRICSHM_ENOMEM);
        fabricshm_session_close(session);
    }

    TEST_CASE("there is room for it") {
        const Job job(kSocket, kArenaBytes, "late");
        CHECK(job.ok);
    }
}
