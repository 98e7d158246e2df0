// A rank is killed inside of a symmetric sum: while the ranks agree, while factors travel, while
// triangles are added up. All survivors get kPeer with its number.

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/symmetric.hpp"
#include "tests/support/lapack.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr int kWorld = 3;
constexpr int kVictim = 1;
constexpr std::uint64_t kN = 200;

TimePoint soon() {
    return Clock::now() + std::chrono::seconds(50);
}

bool survive(RankContext& context, SymmetricMethod method, const char* point) {
    ArenaMemory memory;
    memory.allocate = [&context](Bytes bytes) { return context.place(context.rank, bytes); };
    memory.release = [](std::byte*) {};
    SymmetricReduce reduce(context.group, std::move(memory));
    reduce.set_lapack(some_lapack());
    for (int round = 0; round < 1000; ++round) {
        std::vector<double> own(kN * kN);
        for (std::uint64_t i = 0; i < kN; ++i) own[i * kN + i] = context.rank + 1.0;
        SymmetricCall call;
        call.method = method;
        call.dtype = kernels::DType::kF64;
        call.n = kN;
        call.input = reinterpret_cast<const std::byte*>(own.data());
        call.output = reinterpret_cast<std::byte*>(own.data());
        call.deadline = soon();
        const auto result = reduce.run(call);
        if (result.ok()) continue;
        const Error& error = result.error();
        if (error.code == Errc::kPeer && error.detail == kVictim) return true;
        return report(context, "%s: %s", point, describe(error).c_str());
    }
    return report(context, "%s never fired", point);
}

int failures_with(const char* point, SymmetricMethod method) {
    TestArena arena(kWorld, 4 * kMiB);
    std::vector<pid_t> children;
    std::fflush(nullptr);
    for (int rank = 0; rank < kWorld; ++rank) {
        const pid_t child = ::fork();
        if (child == 0) {
            if (rank == kVictim) fault::arm((std::string(point) + ":kill:3").c_str());
            auto group = Group::attach(arena.place(rank), soon());
            if (!group.ok()) ::_exit(2);
            RankContext context = arena.context(**group);
            ::_exit(survive(context, method, point) ? 0 : 1);
        }
        children.push_back(child);
    }
    int failures = 0;
    for (int rank = 0; rank < kWorld; ++rank) {
        int status = 0;
        ::waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        failures += (rank == kVictim ? killed : status == 0) ? 0 : 1;
    }
    return failures;
}

}  // namespace

TEST_SUITE("crash.symmetric") {
    TEST_CASE("a rank that is killed while factors are agreed on is named to all survivors") {
        CHECK(failures_with("tiny.before_post", SymmetricMethod::kCholesky) == 0);
        CHECK(failures_with("tiny.posted", SymmetricMethod::kCholesky) == 0);
    }

    TEST_CASE("a rank that is killed while matrices travel is named to all survivors") {
        CHECK(failures_with("arrive.before", SymmetricMethod::kCholesky) == 0);
        CHECK(failures_with("arrive.met", SymmetricMethod::kCholesky) == 0);
        CHECK(failures_with("arrive.before", SymmetricMethod::kPacked) == 0);
        CHECK(failures_with("direct.reduced", SymmetricMethod::kPacked) == 0);
    }
}
