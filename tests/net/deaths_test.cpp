// What the ranks of a group over several hosts learn of deaths on another host, and how they go on.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/hosts.hpp"

using test_support::Daemon;
using test_support::ExchangeBoard;
using test_support::failed;
using test_support::HostsRank;
using test_support::run_children;

namespace {

using Counts = std::vector<int>;

int allreduce(fabricshm_group* group, std::int64_t timeout_ms, std::int64_t* result) {
    std::int64_t one = 1;
    fabricshm_call call =
        fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_I64, FABRICSHM_SUM, &one, result, 1);
    call.timeout_ms = timeout_ms;
    return fabricshm_run(group, &call);
}

bool text_has(const char* part) {
    return std::string(fabricshm_error_text()).find(part) != std::string::npos;
}

// Some ranks die after the first operation; the others learn it, and go on with each other.
void check_deaths(const Counts& counts, const std::vector<int>& dying) {
    const Daemon daemon({"--pool-capacity=1GiB"});
    ExchangeBoard board;
    const int world = test_support::world_of(counts);
    const auto is_dying = [&](int rank) {
        return std::find(dying.begin(), dying.end(), rank) != dying.end();
    };
    const auto codes = run_children(world, [&](int rank) -> int {
        HostsRank member(daemon.socket(), board, counts, rank);
        if (member.group == nullptr) return 1;
        std::int64_t sum = 0;
        if (allreduce(member.group, 20'000, &sum) != 0) return failed(2);
        if (is_dying(rank)) std::raise(SIGKILL);
        const auto start = std::chrono::steady_clock::now();
        if (allreduce(member.group, 20'000, &sum) != FABRICSHM_EPEER) return failed(3);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        std::fprintf(stderr, "rank %d: %s (%.3f s)\n", rank, fabricshm_error_text(), took.count());
        if (!is_dying(fabricshm_error_rank()) || !text_has(" on host ")) return failed(4);
        if (allreduce(member.group, 20'000, &sum) != FABRICSHM_EBROKEN) return failed(5);
        fabricshm_group* survivors = nullptr;
        if (fabricshm_group_shrink(member.group, 20'000, &survivors) != 0) return failed(6);
        const int left = world - static_cast<int>(dying.size());
        if (fabricshm_group_world(survivors) != left) return 7;
        if (allreduce(survivors, 20'000, &sum) != 0) return failed(8);
        fabricshm_group_leave(member.group);
        if (allreduce(survivors, 20'000, &sum) != 0) return failed(9);
        fabricshm_group_leave(survivors);
        return sum == left ? 0 : 10;
    });
    for (int rank = 0; rank < world; ++rank) {
        CHECK(codes[static_cast<std::size_t>(rank)] == (is_dying(rank) ? 128 + SIGKILL : 0));
    }
}

}  // namespace

TEST_SUITE("net.deaths") {
    TEST_CASE("a rank dies: all others name it and its host, and go on without it") {
        check_deaths({2, 2}, {3});
    }
    TEST_CASE("the error of an operation that was started names the rank and its host, too") {
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = run_children(2, [&](int rank) -> int {
            HostsRank member(daemon.socket(), board, {1, 1}, rank);
            if (member.group == nullptr) return 1;
            std::int64_t sum = 0;
            if (allreduce(member.group, 20'000, &sum) != 0) return failed(2);
            if (rank == 1) ::kill(::getpid(), SIGKILL);
            const std::int64_t one = 1;
            const fabricshm_call call = fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_I64,
                                                            FABRICSHM_SUM, &one, &sum, 1);
            fabricshm_request* request = nullptr;
            if (fabricshm_start(member.group, &call, &request) != 0) return failed(3);
            if (fabricshm_wait(request) != FABRICSHM_EPEER) return failed(4);
            return text_has("rank 1 on host ") ? 0 : failed(5);
        });
        CHECK(codes[0] == 0);
    }

    TEST_CASE("the first rank dies") {
        check_deaths({2, 2}, {0});
    }
    TEST_CASE("a host dies with all its ranks, and one pool is left") {
        check_deaths({2, 2}, {2, 3});
    }
    TEST_CASE("the first host dies") {
        check_deaths({2, 1}, {0, 1});
    }
    TEST_CASE("one of three hosts dies") {
        check_deaths({1, 2, 1}, {1, 2});
    }

    TEST_CASE("the rest of a host dies while the others shrink: the next try is without it") {
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = run_children(4, [&](int rank) -> int {
            HostsRank member(daemon.socket(), board, {2, 2}, rank);
            if (member.group == nullptr) return 1;
            std::int64_t sum = 0;
            if (allreduce(member.group, 20'000, &sum) != 0) return failed(2);
            if (rank == 0) ::kill(::getpid(), SIGKILL);
            if (allreduce(member.group, 20'000, &sum) != FABRICSHM_EPEER) return failed(3);
            if (rank == 1) std::thread([] { ::kill(::getpid(), SIGKILL); }).detach();
            fabricshm_group* survivors = nullptr;
            int code = FABRICSHM_EPEER;
            for (int attempt = 0; code != 0 && attempt < 10; ++attempt) {
                code = fabricshm_group_shrink(member.group, 20'000, &survivors);
                const bool known = code == 0 || code == FABRICSHM_EPEER ||
                                   code == FABRICSHM_ETIMEOUT || code == FABRICSHM_EBROKEN;
                if (!known) return failed(4);
            }
            if (code != 0) return failed(5);
            code = allreduce(survivors, 20'000, &sum);
            return code == 0 && sum == fabricshm_group_world(survivors) ? 0 : failed(6);
        });
        CHECK(codes[2] == 0);
        CHECK(codes[3] == 0);
    }

    TEST_CASE("a host that something outside knows to be dead ends the waits for it at once") {
        const Daemon daemon;
        ExchangeBoard board;
        test_support::Gate done;
        const auto codes = run_children(2, [&](int rank) -> int {
            HostsRank member(daemon.socket(), board, {1, 1}, rank);
            if (member.group == nullptr) return 1;
            if (rank == 1) return done.wait() ? 0 : 2;  // alive, and in no operation
            if (fabricshm_group_host_lost(member.group, 0) != FABRICSHM_EINVAL) return 3;
            if (fabricshm_group_host_lost(member.group, 1) != 0) return failed(4);
            std::int64_t sum = 0;
            if (allreduce(member.group, 20'000, &sum) != FABRICSHM_EPEER) return failed(5);
            if (fabricshm_error_rank() != 1) return failed(6);
            fabricshm_group* alone = nullptr;
            if (fabricshm_group_shrink(member.group, 20'000, &alone) != 0) return failed(7);
            if (allreduce(alone, 20'000, &sum) != 0 || sum != 1) return failed(8);
            done.open();
            return 0;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }

    TEST_CASE("a rank that leaves after its last operation takes nothing from the others") {
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = run_children(3, [&](int rank) -> int {
            HostsRank member(daemon.socket(), board, {1, 1, 1}, rank);
            if (member.group == nullptr) return 1;
            std::vector<float> data(50'000, 1.0f);
            for (int i = 0; i < 3; ++i) {
                if (fabricshm_broadcast(member.group, data.data(), data.size(), FABRICSHM_F32, 0)) {
                    return failed(2);
                }
            }
            fabricshm_group_leave(member.group);
            return 0;
        });
        CHECK(codes == std::vector<int>(3, 0));
    }

    TEST_CASE("a late rank that lives is a timeout, not a death") {
        const Daemon daemon;
        ExchangeBoard board;
        test_support::Gate done;
        const auto codes = run_children(2, [&](int rank) -> int {
            HostsRank member(daemon.socket(), board, {1, 1}, rank);
            if (member.group == nullptr) return 1;
            if (rank == 1) return done.wait() ? 0 : 2;
            std::int64_t sum = 0;
            const int code = allreduce(member.group, 1'500, &sum);
            done.open();
            return code == FABRICSHM_ETIMEOUT && text_has("rank 1 on host ") ? 0 : failed(3);
        });
        CHECK(codes == std::vector<int>(2, 0));
    }
}
