// A rank is stopped in the middle of storing into the buffers of its peers, which give up on it:
// they know when their buffers are their own again, and the stopped one does not take what it finds
// later for a result.

#include <doctest/doctest.h>

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "tests/support/children.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr Bytes kBytes = 4 * kMiB;
constexpr auto kTimeout = std::chrono::seconds(50);

struct Story {
    TestArena arena{2, 24 * kMiB};
    Gate stopped;   // rank 1 sleeps with a chunk claimed
    Gate used;      // rank 0 has its buffers for other things
    Gate finished;  // rank 1 touches nothing any more
    Gate looked;    // rank 0 has checked its buffers
};

// All of it through claimed chunks, of which both ranks get many.
Tuning small_chunks() {
    Tuning tuning = load_tuning(2);
    tuning.claim_from = 64 * kKiB;
    tuning.chunk_bytes = 16 * kKiB;
    return tuning;
}

struct Rank {
    std::unique_ptr<Group> group;
    std::byte* input;
    std::byte* output;
};

Rank enter(Story& story, int rank) {
    static const Tuning tuning = small_chunks();
    GroupPlace place = story.arena.place(rank);
    place.tuning = &tuning;
    auto group = Group::attach(place, Clock::now() + kTimeout);
    if (!group.ok()) return {};
    RankContext context = story.arena.context(**group);
    context.place(-1, 0);
    std::byte* input = context.place(rank, kBytes);
    return {std::move(group).value(), input, context.place(rank, kBytes)};
}

// Allreduces until one fails: a rank may find no chunk left in the first.
Result<void> until_failure(Rank& rank) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = kernels::DType::kF32;
    call.algorithm = Algorithm::kDirect;
    call.count = kBytes / 4;
    call.input = rank.input;
    call.output = rank.output;
    for (int round = 0; round < 100'000; ++round) {
        call.deadline = Clock::now() + kTimeout;
        const auto result = rank.group->run(call);
        if (!result.ok()) return result;
    }
    return {};
}

int stopped_one(Story& story) {
    Rank rank = enter(story, 1);
    if (rank.group == nullptr) return 1;
    fault::arm("direct.claimed:stop:3");
    const bool failed = !until_failure(rank).ok();
    story.finished.open();
    return failed && story.looked.wait() ? 0 : 2;
}

int other_one(Story& story) {
    Rank rank = enter(story, 0);
    if (rank.group == nullptr) return 1;
    std::thread impatient([&] {
        if (story.stopped.wait()) rank.group->abort(Errc::kTimeout, 1);
    });
    const bool failed = !until_failure(rank).ok();
    impatient.join();
    if (!failed) return 2;
    // The other one has a chunk claimed, and will store into our output.
    const auto early = rank.group->quiesce(Clock::now() + std::chrono::milliseconds(50));
    if (early.ok() || early.error().code != Errc::kTimeout || early.error().detail != 1) return 3;
    std::fill_n(rank.input, kBytes, std::byte{1});
    story.used.open();
    if (!rank.group->quiesce(Clock::now() + kTimeout).ok()) return 4;
    std::fill_n(rank.output, kBytes, std::byte{2});
    if (!story.finished.wait()) return 5;
    const bool ours = std::all_of(rank.output, rank.output + kBytes,
                                  [](std::byte byte) { return byte == std::byte{2}; });
    story.looked.open();
    return ours ? 0 : 6;
}

}  // namespace

TEST_SUITE("crash.collective.stopped_rank") {
    TEST_CASE("a rank that gives up on a stopped one learns when its buffers are its own again") {
        Story story;
        Child other([&] { return other_one(story); });
        Child victim([&] { return stopped_one(story); });
        int status = 0;
        REQUIRE(::waitpid(victim.pid(), &status, WUNTRACED) == victim.pid());
        REQUIRE(WIFSTOPPED(status));
        story.stopped.open();
        CHECK(story.used.wait());
        ::kill(victim.pid(), SIGCONT);
        CHECK(other.wait() == 0);
        CHECK(victim.wait() == 0);
    }
}
