// Every publish and acquire is needed: each is left out in turn, and something fails.
//
// The hosts are eager here: what is not published is never seen, what is not acquired stays as
// old as it can be. So a touch that is left out fails at once and every time, not by chance. With
// the touch in place the same scenes pass, on eager, random and strict hosts. A touch that is
// left out often shows as a wait that does not end: then the timeout is short.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <latch>
#include <map>
#include <string>
#include <thread>

#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/tensor_header.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/fake_daemon.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;
using namespace std::chrono_literals;
using emu::HostBehaviour;
using emu::Temper;

namespace {

constexpr Bytes kPerRank = 8 * kMiB;

// One run of a scene: on which hosts, and how long to wait for what may never come.
struct Stage {
    HostBehaviour behaviour;
    Duration timeout;
    std::map<TouchPoint, std::uint64_t> passed = {};

    TimePoint deadline() const { return Clock::now() + timeout; }
};

// Runs `body` on one thread per rank, each on its host. True when all ranks are content. A rank
// that is not breaks the group, so that the others need not be patient.
bool on_ranks(Stage& stage, int world, const Body& body) {
    TestArena arena(world, kPerRank, {world, stage.behaviour});
    const int failures = failures_in_threads(arena, stage.deadline(), [&](RankContext& context) {
        const bool content = body(context);
        if (!content) context.group.abort(Errc::kTimeout, context.rank);
        return content;
    });
    for (int i = 0; i < kTouchCount; ++i) {
        const auto touch = static_cast<TouchPoint>(i);
        stage.passed[touch] += arena.passed(touch);
    }
    return failures == 0;
}

// The case three times with other values, so that what an earlier one left is wrong.
bool runs(Stage& stage, CollectiveCase wanted) {
    return on_ranks(stage, 4, [&](RankContext& context) {
        wanted.timeout = stage.timeout;
        for (std::uint64_t salt = 0; salt < 3; ++salt) {
            CollectiveCase now = wanted;
            now.salt = salt;
            if (!run_case(context, now)) return false;
        }
        return true;
    });
}

CollectiveCase allreduce(Algorithm algorithm, Placement placement, std::uint64_t count) {
    CollectiveCase wanted;
    wanted.algorithm = algorithm;
    wanted.placement = placement;
    wanted.count = count;
    return wanted;
}

// ---- Scenes

// 800 bytes are beyond a tiny operation and below kFlat's end: ranks that decide by another tuning
// than rank 0's take another way.
bool join(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kAuto, Placement::kPrivate, 200));
}

// In the flag's line, in both lines of a slot, and next to it.
bool tiny(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kAuto, Placement::kPrivate, 3)) &&
           runs(stage, allreduce(Algorithm::kAuto, Placement::kPrivate, 25)) &&
           runs(stage, allreduce(Algorithm::kAuto, Placement::kPrivate, 30));
}

bool slots(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kFlat, Placement::kPrivate, 3000));
}

bool in_place(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kDirect, Placement::kArena, 3000));
}

bool shared_result(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kDirect, Placement::kSharedResult, 3000));
}

bool ring(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kRing, Placement::kArena, 3000));
}

bool host(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kHost, Placement::kArena, 3000));
}

bool staged(Stage& stage) {
    return runs(stage, allreduce(Algorithm::kStaged, Placement::kPrivate, 3000));
}

bool on_command(Stage& stage) {
    CollectiveCase wanted = allreduce(Algorithm::kDirect, Placement::kArena, 3000);
    wanted.trigger = Trigger::kSync;
    return runs(stage, wanted);
}

// More messages than the ring between two ranks holds, each with a tag of its own: every third in
// lines of the ring, the others in the arena.
bool messages(Stage& stage) {
    return on_ranks(stage, 2, [&](RankContext& context) {
        const int count = static_cast<int>(GroupLayout::of(2).channel_lines);
        for (int tag = 1; tag <= count; ++tag) {
            const int hundreds = tag % 3 == 0 ? 0 : 5 * (tag % 7);
            std::vector<std::uint32_t> numbers(50 + 100 * static_cast<std::size_t>(hundreds));
            Call call;
            call.kind = context.rank == 0 ? Kind::kSend : Kind::kRecv;
            call.peer = 1 - context.rank;
            call.tag = tag;
            call.dtype = kernels::DType::kU32;
            call.count = numbers.size();
            call.input = reinterpret_cast<std::byte*>(numbers.data());
            call.output = reinterpret_cast<std::byte*>(numbers.data());
            call.deadline = stage.deadline();
            const auto wanted = static_cast<std::uint32_t>(tag * 7);
            if (context.rank == 0) numbers.assign(numbers.size(), wanted);
            if (!context.group.run(call).ok()) return false;
            if (numbers != std::vector(numbers.size(), wanted)) return false;
        }
        return true;
    });
}

Result<void> meet(RankContext& context, TimePoint deadline) {
    Call barrier;
    barrier.deadline = deadline;
    return context.group.run(barrier);
}

// Rank 0 gives up; rank 1, which waits for rank 2, has to hear of it.
bool failure(Stage& stage) {
    std::latch ended(2);
    return on_ranks(stage, 3, [&](RankContext& context) {
        if (context.rank == 2) {
            ended.wait();  // all stay until then: a rank that leaves is heard, and empties its
                           // caches
            return true;
        }
        const Duration timeout = context.rank == 0 ? 20ms : stage.timeout;
        const auto result = meet(context, Clock::now() + timeout);
        ended.arrive_and_wait();
        const Errc wanted = context.rank == 0 ? Errc::kTimeout : Errc::kBroken;
        return !result.ok() && result.error().code == wanted;
    });
}

bool death_told(Stage& stage) {
    std::latch ended(2);
    return on_ranks(stage, 3, [&](RankContext& context) {
        if (context.rank == 2) {
            context.mark_dead(2);
            ended.wait();  // as in failure()
            return true;
        }
        const auto result = meet(context, stage.deadline());
        ended.count_down();
        return !result.ok() && result.error().code == Errc::kPeer && result.error().detail == 2;
    });
}

// Until rank 0 has read the block and shown itself: what it then sees of this rank is not what it
// had read by then.
void await_rank_zero(const GroupPlace& own, TimePoint deadline) {
    const Visibility view(own.visibility, own.arena, own.arena_bytes);
    const std::byte* block = own.arena + own.block_offset;
    const auto& words =
        reinterpret_cast<const RankWords*>(block + GroupLayout::of(own.world).ranks)[0];
    while (words.clock.load(std::memory_order_acquire) == 0 && Clock::now() < deadline) {
        view.acquire(TouchPoint::kClockRead, &words.clock, kCacheLine, 0);
        std::this_thread::yield();
    }
}

// Rank 1's process ends without a word, and no daemon reports it: rank 0 checks for it by itself.
bool death_seen(Stage& stage) {
    TestArena arena(2, kPerRank, {2, stage.behaviour});
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        await_rank_zero(arena.place(1), stage.deadline());
        const auto group = Group::attach(arena.place(1), stage.deadline());
        ::_exit(group.ok() ? 0 : 1);
    }
    auto group = Group::attach(arena.place(0), stage.deadline());
    bool content = false;
    if (group.ok()) {
        RankContext context = arena.context(**group);
        const auto result = meet(context, stage.deadline());
        content = !result.ok() && result.error().code == Errc::kPeer && result.error().detail == 1;
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    for (const TouchPoint touch : {TouchPoint::kIdentityRead, TouchPoint::kIdentity}) {
        // The child's own count is lost with it.
        stage.passed[touch] += arena.passed(TouchPoint::kIdentityRead);
    }
    return content;
}

// A tensor of eight numbers that two ranks publish in turn, and that its maker frees.
bool tensor(Stage& stage) {
    return on_ranks(stage, 2, [&](RankContext& context) {
        constexpr TensorKey kKey{7, 3};
        constexpr Bytes kBytes = 64;
        std::byte* place = context.place(context.world, 4096);
        auto& header = *reinterpret_cast<TensorHeader*>(place);
        auto* numbers = reinterpret_cast<std::uint64_t*>(&header + 1);
        const Visibility& view = context.view;
        const auto publish = [&](std::uint64_t value) {
            for (int i = 0; i < 8; ++i) numbers[i] = value;
            return publish_tensor(header, kBytes, view);
        };
        const auto sees = [&](std::uint64_t version, std::uint64_t value) {
            const auto seen =
                wait_for_version(header, kKey, version, stage.deadline(), kBytes, view);
            return seen.ok() && *seen == version && numbers[7] == value;
        };
        if (context.rank == 0) {
            format_tensor(header, kKey, own_identity().value(), view);
            if (publish(41) != 1 || !meet(context, stage.deadline()).ok()) return false;
            // Rank 1 published in between: its version counts.
            if (publish(43) != 3 || !meet(context, stage.deadline()).ok()) return false;
            retire_tensor(header, view);
            return true;
        }
        if (!await_tensor(header, kKey, stage.deadline(), view).ok() || !sees(1, 41)) return false;
        if (publish(42) != 2 || !meet(context, stage.deadline()).ok()) return false;
        if (!sees(3, 43) || !meet(context, stage.deadline()).ok()) return false;
        const auto gone = wait_for_version(header, kKey, 9, stage.deadline(), kBytes, view);
        return !gone.ok() && gone.error().code == Errc::kNotFound;
    });
}

std::shared_ptr<Arena> open_arena(const FakeDaemon& daemon) {
    SessionOptions options;
    options.sockets = {daemon.path()};
    options.timeout = 30s;
    return Arena::open(Session::open(options).value(), "job", kMiB, 0).value();
}

// What the last owner of a region left in its caches must not fall on the next owner's bytes.
bool region_returned(Stage& stage) {
    emu::HostPerProcess provider(stage.behaviour);
    install_visibility(&provider);
    FakeDaemon daemon;
    const auto before = open_arena(daemon), after = open_arena(daemon), reader = open_arena(daemon);
    install_visibility(nullptr);
    const auto region = before->create_region(4096).value();
    std::memset(before->base() + region.offset, 1, 4096);
    if (!before->free_region(region.region_id).ok()) return false;
    std::memset(after->base() + region.offset, 2, 4096);
    const auto touch = [&](const Arena& arena, bool publishes) {
        // By a touch that no scene leaves out together with this one.
        std::byte* data = arena.base() + region.offset;
        if (publishes) arena.visibility().publish(TouchPoint::kSlot, data, 4096);
        if (!publishes) arena.visibility().acquire(TouchPoint::kSlotRead, data, 4096);
    };
    touch(*after, true);
    touch(*before, false);  // the caches of the last owner are emptied some time
    touch(*reader, false);
    stage.passed[TouchPoint::kRegionReturn] += 1;
    return reader->base()[region.offset + 100] == std::byte{2};
}

using Scene = bool (*)(Stage&);

// Rank 2 leaves; the others, which wait for more of it, have to hear of that.
bool leaving(Stage& stage) {
    return on_ranks(stage, 3, [&](RankContext& context) {
        if (context.rank == 2) return true;
        const auto result = meet(context, stage.deadline());
        return !result.ok() && result.error().code == Errc::kPeer && result.error().detail == 2;
    });
}

// Which scene needs which touch.
const std::map<TouchPoint, Scene> kScenes = {
    {TouchPoint::kBlockFormat, join},
    {TouchPoint::kBlockRead, join},
    {TouchPoint::kTuning, join},
    {TouchPoint::kTuningRead, join},
    {TouchPoint::kClock, join},
    {TouchPoint::kClockRead, join},
    {TouchPoint::kTiny, tiny},
    {TouchPoint::kTinyRead, tiny},
    {TouchPoint::kSlot, slots},
    {TouchPoint::kSlotRead, slots},
    {TouchPoint::kInput, in_place},
    {TouchPoint::kInputRead, in_place},
    {TouchPoint::kShare, in_place},
    {TouchPoint::kShareRead, in_place},
    {TouchPoint::kResultClean, shared_result},
    {TouchPoint::kCommand, on_command},
    {TouchPoint::kCommandRead, on_command},
    {TouchPoint::kRingInputRead, ring},
    {TouchPoint::kRingSum, ring},
    {TouchPoint::kRingSumRead, ring},
    {TouchPoint::kRingResult, ring},
    {TouchPoint::kRingResultRead, ring},
    {TouchPoint::kHostInputRead, host},
    {TouchPoint::kHostResult, host},
    {TouchPoint::kHostResultRead, host},
    {TouchPoint::kStagedPost, staged},
    {TouchPoint::kStagedRead, staged},
    {TouchPoint::kStagedResult, staged},
    {TouchPoint::kStagedResultRead, staged},
    {TouchPoint::kMessage, messages},
    {TouchPoint::kMessageRead, messages},
    {TouchPoint::kPiece, messages},
    {TouchPoint::kPieceRead, messages},
    {TouchPoint::kSent, messages},
    {TouchPoint::kSentRead, messages},
    {TouchPoint::kTaken, messages},
    {TouchPoint::kTakenRead, messages},
    {TouchPoint::kFailure, failure},
    {TouchPoint::kFailureRead, failure},
    {TouchPoint::kDead, death_told},
    {TouchPoint::kDeadRead, death_told},
    {TouchPoint::kIdentity, death_seen},
    {TouchPoint::kIdentityRead, death_seen},
    {TouchPoint::kTensorHeader, tensor},
    {TouchPoint::kTensorHeaderRead, tensor},
    {TouchPoint::kElements, tensor},
    {TouchPoint::kElementsRead, tensor},
    {TouchPoint::kVersion, tensor},
    {TouchPoint::kVersionRead, tensor},
    {TouchPoint::kVersionBefore, tensor},
    {TouchPoint::kRetire, tensor},
    {TouchPoint::kRegionReturn, region_returned},
};

}  // namespace

TEST_SUITE("emu.hosts.touch_points") {
    TEST_CASE("every touch that exists on hosts without shared caches has a scene that needs it") {
        for (int i = 0; i < kTouchCount; ++i) {
            const TouchRow& row = row_of(static_cast<TouchPoint>(i));
            CAPTURE(std::string(row.name));
            CHECK(kScenes.count(row.touch) == (row.scope == TouchScope::kCoherentOnly ? 0u : 1u));
        }
    }

    TEST_CASE("with all touches in place every scene passes, whatever the caches do unasked") {
        for (const Temper temper : {Temper::kEager, Temper::kRandom, Temper::kStrict}) {
            std::map<Scene, Stage> played;
            for (const auto& [touch, scene] : kScenes) {
                CAPTURE(static_cast<int>(temper));
                CAPTURE(std::string(row_of(touch).name));
                const auto [at, is_new] =
                    played.try_emplace(scene, Stage{{temper, 11, std::nullopt}, 60s});
                if (is_new) CHECK(scene(at->second));
                CHECK(at->second.passed[touch] > 0);
            }
        }
    }

    TEST_CASE("on hosts without shared caches a rank that leaves ends the waits of the others") {
        Stage stage{{Temper::kEager, 11, std::nullopt}, 60s};
        CHECK(leaving(stage));
    }

    TEST_CASE("with any one touch left out its scene fails") {
        for (const auto& [touch, scene] : kScenes) {
            CAPTURE(std::string(row_of(touch).name));
            Stage stage{{Temper::kEager, 11, touch}, 300ms};
            const bool passes = scene(stage);
            std::printf("%-24s left out: %s\n", row_of(touch).name, passes ? "unnoticed" : "fails");
            CHECK_FALSE(passes);
        }
    }
}
