// Ranks and hosts that stand still in the middle of an operation, and go on when the others have
// long given them up; and what is left of groups that were joined and left.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/units.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/etcd_process.hpp"
#include "tests/support/hosts.hpp"

using namespace std::chrono_literals;
using fabricshm::Clock;
using test_support::Child;
using test_support::Daemon;
using test_support::ExchangeBoard;
using test_support::failed;
using test_support::Gate;
using test_support::HostsRank;

namespace {

// Three hosts; rank 1 stops, and rank 2 is in its pool.
const std::vector<int> kCounts{1, 2, 1};
constexpr int kStopped = 1;
constexpr std::uint64_t kCount = 300'000;

float number(int rank, std::uint64_t i, int round) {
    return static_cast<float>((rank + 1) * 1000 + static_cast<int>(i % 991) + round % 83);
}

// A large sum of `members`; `wrong` when an element of a sum that went well is not what it has to
// be.
int sum(fabricshm_group* group, const std::vector<int>& members, int rank, int round,
        std::int64_t timeout_ms, bool& wrong) {
    std::vector<float> mine(kCount), sums(kCount);
    for (std::uint64_t i = 0; i < kCount; ++i) mine[i] = number(rank, i, round);
    fabricshm_call call = fabricshm_call_make(FABRICSHM_ALLREDUCE, FABRICSHM_F32, FABRICSHM_SUM,
                                              mine.data(), sums.data(), kCount);
    call.timeout_ms = timeout_ms;
    const int code = fabricshm_run(group, &call);
    for (std::uint64_t i = 0; code == 0 && i < kCount; ++i) {
        float right = 0;
        for (const int member : members) right += number(member, i, round);
        wrong = wrong || sums[i] != right;
    }
    return code;
}

struct Story {
    ExchangeBoard board;
    Gate gone_on;     // the survivors have gone on without it
    Gate woken;       // it runs again
    Gate has_failed;  // and has its own error
    std::int64_t timeout_ms = 0;
    bool in_cluster = false;
};

// Ranks 0 and 3.
int survive(const Story& story, HostsRank& member, Story& gates) {
    const std::vector<int> all{0, 1, 2, 3};
    bool wrong = false;
    int code = 0;
    for (int round = 0; code == 0 && round < 100; ++round) {
        code = sum(member.group, all, member.rank, round, story.timeout_ms, wrong);
    }
    if (wrong) return 2;
    if (code != FABRICSHM_EPEER && code != FABRICSHM_ETIMEOUT) return failed(3);
    const int named = fabricshm_error_rank();
    if (named != 1 && named != 2) return failed(4);
    fabricshm_group* survivors = nullptr;
    if (fabricshm_group_shrink(member.group, 5'000, &survivors) != 0) return failed(5);
    if (fabricshm_group_world(survivors) != 2) return 6;
    const std::vector<int> left{0, 3};
    const auto work = [&](int from) {
        for (int round = from; round < from + 10; ++round) {
            if (sum(survivors, left, member.rank, round, 20'000, wrong) != 0) return failed(7);
        }
        return wrong ? 8 : 0;
    };
    if (const int bad = work(200); bad != 0) return bad;
    gates.gone_on.open();
    if (!gates.woken.wait()) return 9;
    // Its late bytes come now, if at all.
    if (const int bad = work(300); bad != 0) return bad;
    if (!gates.has_failed.wait(2)) return 10;
    if (const int bad = work(400); bad != 0) return bad;
    fabricshm_group_leave(survivors);
    return 0;
}

// Ranks 1 and 2: they are out of the group, and hear it.
int be_left(Story& story, HostsRank& member) {
    const std::vector<int> all{0, 1, 2, 3};
    bool wrong = false;
    int code = 0;
    for (int round = 0; code == 0 && round < 100; ++round) {
        code = sum(member.group, all, member.rank, round, story.timeout_ms, wrong);
    }
    if (wrong) return 20;
    const bool known =
        code == FABRICSHM_EPEER || code == FABRICSHM_ETIMEOUT || code == FABRICSHM_EBROKEN;
    if (!known) return failed(21);
    // They are not the larger part. Connections that have ended look like deaths, and only a
    // cluster knows better.
    // An attempt fails while it finds out which of them have ended, and a program tries again.
    for (int attempt = 0; attempt < 3; ++attempt) {
        fabricshm_group* none = nullptr;
        const int shrunk = fabricshm_group_shrink(member.group, 2'000, &none);
        if (shrunk != 0) continue;
        if (story.in_cluster) return 22;
        fabricshm_group_leave(none);
        break;
    }
    story.has_failed.open();
    return 0;
}

int play_rank(Story& story, const std::string& socket, int rank) {
    if (rank == kStopped) fabricshm::fault::arm("hosts.scattered:stop:9");
    HostsRank member(socket, story.board, kCounts, rank);
    if (member.group == nullptr) return 1;
    return rank == 1 || rank == 2 ? be_left(story, member) : survive(story, member, story);
}

bool stands_still(pid_t pid) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT) == 0 &&
           info.si_pid == pid;
}

// `stopped`: what else stands still with rank 1.
void play(Story& story, const std::vector<std::string>& sockets,
          const std::function<std::vector<pid_t>(const std::vector<Child>&)>& stopped) {
    std::vector<Child> ranks;
    for (int rank = 0; rank < 4; ++rank) {
        const auto& socket =
            sockets[static_cast<std::size_t>(test_support::host_of(kCounts, rank))];
        ranks.emplace_back([&story, socket, rank] { return play_rank(story, socket, rank); });
    }
    REQUIRE(stands_still(ranks[kStopped].pid()));
    const auto others = stopped(ranks);
    for (const pid_t pid : others) ::kill(pid, SIGSTOP);
    CHECK(story.gone_on.wait(2));
    for (const pid_t pid : others) ::kill(pid, SIGCONT);
    ::kill(ranks[kStopped].pid(), SIGCONT);
    story.woken.open();
    for (int rank = 0; rank < 4; ++rank) {
        CAPTURE(rank);
        CHECK(ranks[static_cast<std::size_t>(rank)].wait() == 0);
    }
}

/// What a process holds.
struct Holdings {
    std::size_t files = 0;
    std::size_t threads = 0;
    std::size_t mappings = 0;
    std::uint64_t arena = 0;
};

std::size_t entries_of(const char* folder) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
    return count;
}

// Shared ones: those of private memory come and go with malloc.
Holdings holdings(fabricshm_arena* arena) {
    Holdings found{entries_of("/proc/self/fd"), entries_of("/proc/self/task"), 0,
                   fabricshm_arena_bytes(arena)};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const auto at = line.find(' ');
        found.mappings += at != std::string::npos && line.compare(at + 4, 1, "s") == 0 ? 1 : 0;
    }
    return found;
}

}  // namespace

TEST_SUITE("net.stopped") {
    TEST_CASE("a rank that stands still in an operation is left behind, and nothing of it comes") {
        ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
        const Daemon daemon({"--pool-capacity=1GiB"});
        Story story;
        story.timeout_ms = 2'000;
        play(story, std::vector<std::string>(3, daemon.socket()),
             [](const auto&) { return std::vector<pid_t>{}; });
    }

    // Two hosts of two ranks; rank 3 stops. Its neighbour waits for it in their pool, the ranks of
    // the other host for both of them over the network.
    TEST_CASE("a rank that stands still is named to all, its neighbour too, within their timeout") {
        ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
        const Daemon daemon({"--pool-capacity=1GiB"});
        constexpr std::int64_t kTimeoutMs = 3'000;
        ExchangeBoard board;
        Gate failed_all;
        std::vector<Child> ranks;
        for (int rank = 0; rank < 4; ++rank) {
            ranks.emplace_back([&, rank]() -> int {
                HostsRank member(daemon.socket(), board, {2, 2}, rank);
                if (member.group == nullptr) return 1;
                const std::vector<int> all{0, 1, 2, 3};
                bool wrong = false;
                if (sum(member.group, all, rank, 0, 20'000, wrong) != 0 || wrong) return failed(2);
                if (rank == 3) ::raise(SIGSTOP);
                const auto begin = Clock::now();
                const int code = sum(member.group, all, rank, 1, kTimeoutMs, wrong);
                const std::chrono::duration<double> took = Clock::now() - begin;
                std::fprintf(stderr, "rank %d: %d, %s (%.2f s)\n", rank, code,
                             fabricshm_error_text(), took.count());
                const int named = fabricshm_error_rank();
                const std::string text = fabricshm_error_text();
                if (rank == 3) {
                    // It is not dead itself: the others have left it.
                    if (code != FABRICSHM_EPEER && code != FABRICSHM_ETIMEOUT) return failed(3);
                    return code == FABRICSHM_EPEER && named == 3 ? failed(4) : 0;
                }
                int shrunk = FABRICSHM_ETIMEOUT;
                std::string missing = "rank 3 on host , did not ask to shrink";
                if (rank == 2) {
                    // It lives, for all that its daemon knows, and does not call it.
                    fabricshm_group* none = nullptr;
                    shrunk = fabricshm_group_shrink(member.group, 500, &none);
                    missing = fabricshm_error_text();
                }
                failed_all.open();
                const bool is_late = code == FABRICSHM_ETIMEOUT && rank == 2;
                if (code != FABRICSHM_EPEER && !is_late) return failed(5);
                // A timeout has no rank but in words.
                if (named != (code == FABRICSHM_EPEER ? 3 : -1)) return failed(6);
                if (text.find("rank 3 on host ") == std::string::npos) return failed(7);
                if (shrunk != FABRICSHM_ETIMEOUT) return failed(10);
                if (missing.find("rank 3 on host ") == std::string::npos) return failed(11);
                if (missing.find("did not ask to shrink") == std::string::npos) return failed(12);
                return took < std::chrono::milliseconds(kTimeoutMs + 1'500) ? 0 : failed(8);
            });
        }
        REQUIRE(stands_still(ranks[3].pid()));
        CHECK(failed_all.wait(3));
        ::kill(ranks[3].pid(), SIGCONT);
        for (int rank = 0; rank < 4; ++rank) {
            CAPTURE(rank);
            CHECK(ranks[static_cast<std::size_t>(rank)].wait() == 0);
        }
    }

    TEST_CASE("a host that stands still in an operation for longer than its lease") {
        if (!test_support::has_etcd()) return;
        ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
        const test_support::EtcdProcesses etcd;
        std::vector<std::unique_ptr<Daemon>> daemons;
        std::vector<std::string> sockets;
        for (const char* host : {"a", "b", "c"}) {
            daemons.push_back(std::make_unique<Daemon>(std::vector<std::string>{
                "--pool-capacity=512MiB", "--cluster-etcd=" + etcd.endpoint_list(),
                "--cluster-name=stopped", std::string("--cluster-host-name=") + host,
                "--cluster-ttl=2s"}));
            sockets.push_back(daemons.back()->socket());
        }
        {
            Story story;
            story.timeout_ms = 50'000;  // the cluster is faster
            story.in_cluster = true;
            const auto begin = Clock::now();
            play(story, sockets, [&](const std::vector<Child>& ranks) {
                return std::vector<pid_t>{daemons[1]->pid(), ranks[2].pid()};
            });
            CHECK(Clock::now() - begin < 40s);
        }
        // Its host keeps its lease: like one that is cut off from the ranks of the others alone.
        Story story;
        story.timeout_ms = 2'000;
        story.in_cluster = true;
        play(story, sockets,
             [](const std::vector<Child>& ranks) { return std::vector<pid_t>{ranks[2].pid()}; });
    }

    TEST_CASE("nothing is left of groups that were joined and left") {
        ::setenv("FABRIC_NET_LIBRARY", NET_LIBRARY, 1);
        constexpr int kWarm = 10;
        constexpr int kTimes = 100;
        const Daemon daemon;
        ExchangeBoard board;
        const auto codes = test_support::run_children(2, [&](int rank) -> int {
            test_support::Job job(daemon.socket(), 160 << 20, rank == 0 ? "one" : "other");
            if (!job.ok) return 1;
            test_support::ExchangePlace place{&board, rank, 2};
            const fabricshm_hosts_spec spec = test_support::hosts_spec(place, "group");
            Holdings before;
            for (int i = 0; i < kWarm + kTimes; ++i) {
                if (i == kWarm) before = holdings(job.arena);
                fabricshm_group* group = nullptr;
                if (fabricshm_group_join_hosts(job.arena, &spec, &group) != 0) return failed(2);
                std::int64_t one = 1;
                std::int64_t both = 0;
                if (fabricshm_allreduce(group, &one, &both, 1, FABRICSHM_I64, FABRICSHM_SUM) != 0) {
                    return failed(3);
                }
                fabricshm_group_leave(group);
                if (both != 2) return 4;
            }
            const Holdings after = holdings(job.arena);
            std::fprintf(stderr, "files %zu %zu, threads %zu %zu, mappings %zu %zu\n", before.files,
                         after.files, before.threads, after.threads, before.mappings,
                         after.mappings);
            if (after.files != before.files) return 5;
            if (after.threads != before.threads) return 6;
            if (after.mappings != before.mappings) return 7;
            return after.arena == before.arena ? 0 : 8;
        });
        CHECK(codes == std::vector<int>(2, 0));
    }
}
