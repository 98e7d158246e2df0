// Groups over several hosts that are joined and left again and again: each join comes about, and no
// rank waits for the answer of one that has left already.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/hosts.hpp"

using test_support::Daemon;
using test_support::ExchangeBoard;
using test_support::ExchangePlace;
using test_support::failed;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr int kJoins = 12;
constexpr int kWorld = 4;
// How long a rank waits at most for a peer's answer to its goodbye.
constexpr auto kGoodbyeWait = std::chrono::seconds(1);
constexpr int kMaxSlow = 1;  // a machine under load
constexpr int kSlow = 20;

int join_often(const std::string& socket, ExchangeBoard& board, int rank) {
    const Job job(socket, 160 << 20, ("pool" + std::to_string(rank / 2)).c_str());
    if (!job.ok) return 1;
    ExchangePlace place{&board, rank, kWorld};
    int slow = 0;
    for (int i = 0; i < kJoins; ++i) {
        const fabricshm_hosts_spec spec = test_support::hosts_spec(place, "group");
        fabricshm_group* group = nullptr;
        if (fabricshm_group_join_hosts(job.arena, &spec, &group) != 0) return failed(2);
        const auto began = std::chrono::steady_clock::now();
        fabricshm_group_leave(group);
        slow += std::chrono::steady_clock::now() - began >= kGoodbyeWait;
    }
    if (slow > kMaxSlow) std::fprintf(stderr, "rank %d: %d slow goodbyes\n", rank, slow);
    return slow > kMaxSlow ? kSlow : 0;
}

}  // namespace

TEST_SUITE("net.joins") {
    TEST_CASE("ranks of two hosts join and leave again and again") {
        const Daemon daemon({"--pool-capacity=1GiB"});
        ExchangeBoard board;
        const auto codes = run_children(
            kWorld, [&](int rank) { return join_often(daemon.socket(), board, rank); });
        CHECK(codes == std::vector<int>(kWorld, 0));
    }
}
