// A rank is killed at each named point of every engine: all survivors get kPeer with its number
// soon, and none hangs. There is no daemon here: survivors see the death themselves.

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/collective/mailbox.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "tests/support/children.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr int kWorld = 3;
constexpr int kVictim = 1;
constexpr Bytes kPerRank = 24 * kMiB;

// Ranks enough for a tree of three levels: 1 and 9 are above others.
constexpr int kTreeWorld = 18;
constexpr int kTreeVictims[] = {0, 1, 9, 17};

struct Scene {
    const char* point;
    Algorithm algorithm;
    Placement placement;
    std::uint64_t count;
    Trigger trigger;
    Kind kind = Kind::kAllreduce;
    int root = 0;
};

// The points that a rank passes in one allreduce of each engine, or in what another engine is for.
const Scene kScenes[] = {
    {"tiny.before_post", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync},
    {"tiny.posted", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync},
    // A receiver, and a root that others wait for, while a rank that needs no other runs ahead.
    {"tiny.posted", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync, Kind::kBroadcast},
    {"tiny.posted", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync, Kind::kReduce},
    {"tiny.before_post", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync, Kind::kBroadcast,
     kVictim},
    // A scan: rank 0 needs no other rank, rank 2 all of them.
    {"tiny.before_post", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync, Kind::kScan},
    {"slots.posted", Algorithm::kFlat, Placement::kPrivate, 200000, Trigger::kAsync, Kind::kExscan},
    {"direct.reduced", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kAsync, Kind::kScan},
    {"slots.before_post", Algorithm::kFlat, Placement::kPrivate, 200000, Trigger::kAsync},
    {"slots.posted", Algorithm::kFlat, Placement::kPrivate, 200000, Trigger::kAsync},
    {"arrive.before", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kAsync},
    {"arrive.met", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kAsync},
    {"direct.reduced", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kAsync},
    {"arrive.before", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kSync},
    {"pull.reduced", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kAsync},
    {"pull.shared", Algorithm::kDirect, Placement::kSharedResult, 500000, Trigger::kAsync,
     Kind::kBroadcast},
    {"pull.combined", Algorithm::kDirect, Placement::kArena, 500000, Trigger::kAsync,
     Kind::kBroadcast},
    {"ring.added", Algorithm::kRing, Placement::kArena, 500000, Trigger::kAsync},
    {"ring.fetched", Algorithm::kRing, Placement::kArena, 500000, Trigger::kAsync},
    {"host.reduced", Algorithm::kHost, Placement::kArena, 500000, Trigger::kAsync},
    {"staged.before_post", Algorithm::kStaged, Placement::kPrivate, 500000, Trigger::kAsync},
    {"staged.reduced", Algorithm::kStaged, Placement::kPrivate, 500000, Trigger::kAsync},
    {"staged.copied", Algorithm::kStaged, Placement::kPrivate, 500000, Trigger::kAsync},
};

// The direct engine is another one where hosts share no caches.
bool passed_here(const Scene& scene, bool one_host) {
    const std::string point = scene.point;
    return one_host ? !point.starts_with("pull.") : point != "direct.reduced";
}

// The points of what goes along a tree; "arrive.before" and "direct.reduced" come before barriers.
const Scene kTreeScenes[] = {
    {"tree.before_post", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync},
    {"tree.posted", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync},
    {"tree.released", Algorithm::kAuto, Placement::kArena, 2, Trigger::kAsync},
    {"tree.released", Algorithm::kAuto, Placement::kArena, 5000, Trigger::kAsync},
    {"arrive.before", Algorithm::kAuto, Placement::kArena, 5000, Trigger::kAsync},
    {"direct.reduced", Algorithm::kAuto, Placement::kArena, 5000, Trigger::kAsync},
    {"staged.copied", Algorithm::kAuto, Placement::kPrivate, 5000, Trigger::kAsync},
};

// Runs the operation until it fails; true when it failed as it should.
bool survive(RankContext& context, const Scene& scene, int victim = kVictim) {
    CollectiveCase wanted;
    wanted.algorithm = scene.algorithm;
    wanted.placement = scene.placement;
    wanted.count = scene.count;
    wanted.trigger = scene.trigger;
    for (int round = 0; round < 1000; ++round) {
        Call call;
        call.kind = scene.kind;
        call.dtype = kernels::DType::kF32;
        call.algorithm = scene.algorithm;
        call.trigger = scene.trigger;
        call.root = scene.root;
        call.count = scene.count;
        call.deadline = Clock::now() + std::chrono::seconds(50);
        std::vector<std::byte> own(scene.count * 4);
        context.place(-1, 0);
        std::byte* buffer = scene.placement == Placement::kPrivate
                                ? own.data()
                                : context.place(context.rank, scene.count * 4);
        call.input = buffer;
        call.output = buffer;
        if (shares_output(scene.placement)) {
            call.flags = kSharedOutput;
            call.output = context.place(context.world, scene.count * 4);
        }
        const auto result = context.group.run(call);
        if (result.ok()) continue;
        const Error& error = result.error();
        if (error.code == Errc::kPeer && error.detail == victim) return true;
        return report(context, "%s: %s", scene.point, describe(error).c_str());
    }
    return report(context, "%s never fired", scene.point);
}

// The victim is this program again, since a fault point is armed by the environment at its start.
int failures_with(const char* point, const Body& body, int world = kWorld, int victim = kVictim,
                  const Tuning* tuning = nullptr) {
    TestArena arena(world, world == kWorld ? kPerRank : 256 * kKiB);
    int failures = 0;
    std::vector<pid_t> children;
    std::fflush(nullptr);
    for (int rank = 0; rank < world; ++rank) {
        const pid_t child = ::fork();
        if (child == 0) {
            if (rank == victim) fault::arm((std::string(point) + ":kill:3").c_str());
            GroupPlace place = arena.place(rank);
            if (tuning != nullptr) place.tuning = tuning;
            auto group = Group::attach(place, Clock::now() + std::chrono::seconds(50));
            if (!group.ok()) ::_exit(2);
            RankContext context = arena.context(**group);
            ::_exit(body(context) ? 0 : 1);
        }
        children.push_back(child);
    }
    for (int rank = 0; rank < world; ++rank) {
        int status = 0;
        ::waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        const bool right = rank == victim ? killed : status == 0;
        failures += right ? 0 : 1;
    }
    return failures;
}

// Rank 0 takes a message from any rank, whose sender (rank 1) is killed between two pieces. Rank 2
// lives on, so that there still is a sender.
bool take_from_anybody(RankContext& context) {
    std::vector<std::byte> bytes(Mailbox::kPiece * 4);
    Call call;
    call.dtype = kernels::DType::kU8;
    call.kind = context.rank == 1 ? Kind::kSend : Kind::kRecv;
    call.peer = context.rank == 0 ? kAnyPeer : 0;
    call.count = bytes.size();
    call.input = call.kind == Kind::kSend ? bytes.data() : nullptr;
    call.output = call.kind == Kind::kRecv ? bytes.data() : nullptr;
    call.deadline = Clock::now() + std::chrono::seconds(50);
    const auto result = context.group.run(call);
    if (context.rank == 2) return true;  // ends with rank 0
    const bool told =
        !result.ok() && result.error().code == Errc::kPeer && result.error().detail == kVictim;
    return told || report(context, "%s", describe(result.error()).c_str());
}

void check_scenes(Placement placement) {
    const bool one_host = Hosts::of_environment().count == 0;
    for (const Scene& scene : kScenes) {
        if (scene.placement != placement || !passed_here(scene, one_host)) continue;
        CAPTURE(scene.point);
        CHECK(failures_with(scene.point,
                            [&](RankContext& context) { return survive(context, scene); }) == 0);
    }
}

}  // namespace

TEST_SUITE("crash.collective") {
    // Two cases, since the virtual machines run one on each kind of pool.
    TEST_CASE("every survivor learns which rank was killed, with buffers in the arena") {
        check_scenes(Placement::kArena);
    }

    TEST_CASE("every survivor learns which rank was killed, with private buffers") {
        check_scenes(Placement::kPrivate);
    }

    TEST_CASE("every survivor learns which rank of a tree was killed, whatever is below it") {
        if (Hosts::of_environment().count != 0) return;  // no trees there
        Tuning tuning = machine_tuning(kTreeWorld);
        tuning.tree_world = 8;
        for (const Scene& scene : kTreeScenes) {
            for (const int victim : kTreeVictims) {
                CAPTURE(scene.point);
                CAPTURE(victim);
                const auto body = [&](RankContext& context) {
                    return survive(context, scene, victim);
                };
                CHECK(failures_with(scene.point, body, kTreeWorld, victim, &tuning) == 0);
            }
        }
    }

    TEST_CASE("a receive from any rank whose message stops half-way names the rank that sent it") {
        CHECK(failures_with("message.before_publish", take_from_anybody) == 0);
    }

    TEST_CASE("a wait for a live rank that stays away learns of the death that keeps it away") {
        TestArena arena(kWorld, kPerRank);
        Gate finished;
        const auto codes = run_children(kWorld, [&](int rank) {
            const auto deadline = Clock::now() + std::chrono::seconds(50);
            auto group = Group::attach(arena.place(rank), deadline);
            if (!group.ok()) return 2;
            if (rank == 0) return 0;  // as good as killed: its clock will not rise any more
            // Rank 2 has learned of the death elsewhere. Rank 1 checks rank 2 first.
            if (rank == 2) return finished.wait() ? 0 : 3;
            Call call;
            call.kind = Kind::kBarrier;
            call.deadline = deadline;
            const auto result = (*group)->run(call);
            finished.open();
            const Error& error = result.error();
            return error.code == Errc::kPeer && error.detail == 0 ? 0 : 4;
        });
        CHECK(codes == std::vector<int>{0, 0, 0});
    }
}
