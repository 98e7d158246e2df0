// Collectives between threads, so that the thread sanitizer sees all ranks; processes are in
// tests/multiproc/collective.

#include "libfabricshm/collective/group.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <thread>

#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr Bytes kPerRank = 8 * kMiB;
constexpr Bytes kMostAhead = 16 * kKiB;  // above it no operation is part of a run

int failures(int world, const std::vector<CollectiveCase>& cases) {
    return failures_in_threads(world, kPerRank, [&](RankContext& context) {
        for (const CollectiveCase& wanted : cases) {
            if (!run_case(context, wanted)) return false;
        }
        return true;
    });
}

std::vector<CollectiveCase> every_kind(std::uint64_t count, Placement placement, bool uneven) {
    std::vector<CollectiveCase> cases;
    for (const Kind kind :
         {Kind::kAllreduce, Kind::kReduceScatter, Kind::kAllGather, Kind::kBroadcast, Kind::kReduce,
          Kind::kGather, Kind::kScatter, Kind::kAllToAll}) {
        const bool whole =
            kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kReduce;
        if (uneven && (whole || placement == Placement::kInPlace)) continue;
        CollectiveCase wanted;
        wanted.kind = kind;
        wanted.count = count;
        wanted.placement = placement;
        wanted.uneven = uneven;
        cases.push_back(wanted);
    }
    return cases;
}

// Rank 0 believes in root 1, the others in root 0: no rank that is a root hears of one that waits.
bool told_of_another_root(RankContext& context, Kind kind, std::uint64_t count) {
    Call call;
    call.kind = kind;
    call.dtype = kernels::DType::kF32;
    call.root = context.rank == 0 ? 1 : 0;
    call.count = count;
    call.input = context.place(context.rank, count * 4 * 3);
    call.output = context.place(context.rank, count * 4 * 3);
    call.deadline = Clock::now() + std::chrono::seconds(50);
    const auto told = [](const Result<void>& result) {
        return !result.ok() && result.error().code == Errc::kMismatch;
    };
    if (told(context.group.run(call))) return true;
    // The next ones may be rooted as well, and this rank their root, which waits for nobody.
    Call next;
    next.kind = Kind::kBroadcast;
    next.count = 1;
    next.root = context.rank;
    next.input = next.output = call.output;
    next.deadline = call.deadline;
    // In a run eleven may pass before ranks that wait for nobody are compared.
    const int most = count * 4 <= kMostAhead ? 12 : 1;
    for (int passed = 0; passed < most; ++passed) {
        if (told(context.group.run(next))) return true;
    }
    return complain(context, "kind %d: not told", int(kind));
}

// Rank 0 gives `count` numbers to the others, one by one; rank 2 begins when rank 0 has given
// `ahead`.
bool received_in_order(RankContext& context, int count, int ahead, std::atomic<int>& given) {
    while (context.rank == 2 && given.load() < ahead) std::this_thread::yield();
    for (int number = 0; number < count; ++number) {
        int value = context.rank == 0 ? number : -1;
        Call call;
        call.kind = Kind::kBroadcast;
        call.dtype = kernels::DType::kI32;
        call.count = 1;
        call.input = call.output = reinterpret_cast<std::byte*>(&value);
        call.deadline = Clock::now() + std::chrono::seconds(50);
        const auto result = context.group.run(call);
        if (!result.ok() || value != number)
            return complain(context, "number %d: %d", number, value);
        if (context.rank == 0) given = number + 1;
    }
    return true;
}

}  // namespace

TEST_SUITE("collective.group") {
    TEST_CASE("every kind gives the right bytes at every size, wherever the buffers are") {
        for (const int world : {1, 2, 3, 4}) {
            for (const std::uint64_t count : {0, 1, 13, 140, 1000, 5000, 70001}) {
                for (const Placement placement :
                     {Placement::kArena, Placement::kPrivate, Placement::kMixed,
                      Placement::kInPlace, Placement::kPrivateInPlace}) {
                    CAPTURE(world);
                    CAPTURE(count);
                    CAPTURE(static_cast<int>(placement));
                    CHECK(failures(world, every_kind(count, placement, false)) == 0);
                }
            }
        }
    }

    TEST_CASE("parts may differ in size and be empty") {
        for (const std::uint64_t count : {1, 7, 300, 20001}) {
            CAPTURE(count);
            CHECK(failures(3, every_kind(count, Placement::kArena, true)) == 0);
            CHECK(failures(4, every_kind(count, Placement::kPrivate, true)) == 0);
        }
    }

    TEST_CASE("every algorithm and both triggers give the same allreduce") {
        std::vector<CollectiveCase> cases;
        for (const Algorithm algorithm : {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kRing,
                                          Algorithm::kStaged, Algorithm::kHost}) {
            for (const Trigger trigger : {Trigger::kAsync, Trigger::kSync}) {
                for (const Placement placement : {Placement::kArena, Placement::kPrivate,
                                                  Placement::kInPlace, Placement::kSharedResult}) {
                    for (const std::uint64_t count : {0, 1, 100, 5000, 300001}) {
                        CollectiveCase wanted;
                        wanted.algorithm = algorithm;
                        wanted.trigger = trigger;
                        wanted.placement = placement;
                        wanted.count = count;
                        const bool shares = placement == Placement::kSharedResult;
                        // Elsewhere every rank writes the same bytes to the shared place.
                        if (shares && algorithm != Algorithm::kDirect) continue;
                        cases.push_back(wanted);
                    }
                }
            }
        }
        CHECK(failures(2, cases) == 0);
        CHECK(failures(5, cases) == 0);
    }

    TEST_CASE("every type is reduced by every operation it supports") {
        for (int type = 0; type < kernels::kDTypeCount; ++type) {
            std::vector<CollectiveCase> cases;
            for (int op = 0; op < kernels::kReduceOpCount; ++op) {
                CollectiveCase wanted;
                wanted.dtype = static_cast<kernels::DType>(type);
                wanted.op = static_cast<kernels::ReduceOp>(op);
                if (!kernels::is_supported(wanted.dtype, wanted.op)) continue;
                const bool half =
                    wanted.dtype == kernels::DType::kF16 || wanted.dtype == kernels::DType::kBF16;
                if (half && wanted.op == kernels::ReduceOp::kAvg) continue;
                for (const std::uint64_t count : {3, 900, 30000}) {
                    wanted.count = count;
                    cases.push_back(wanted);
                }
            }
            CAPTURE(type);
            CHECK(failures(3, cases) == 0);
        }
    }

    TEST_CASE("any root will do") {
        std::vector<CollectiveCase> cases;
        for (int root = 0; root < 4; ++root) {
            for (const Kind kind :
                 {Kind::kBroadcast, Kind::kReduce, Kind::kGather, Kind::kScatter}) {
                for (const std::uint64_t count : {2, 1500, 40000}) {
                    CollectiveCase wanted;
                    wanted.kind = kind;
                    wanted.root = root;
                    wanted.count = count;
                    cases.push_back(wanted);
                }
            }
        }
        CHECK(failures(4, cases) == 0);
    }

    TEST_CASE("started operations run in order and mix with blocking ones") {
        std::vector<CollectiveCase> cases;
        for (int i = 0; i < 40; ++i) {
            CollectiveCase wanted;
            wanted.count = static_cast<std::uint64_t>(1) << (i % 16);
            wanted.started = i % 3 != 0;
            wanted.kind = i % 2 == 0 ? Kind::kAllreduce : Kind::kAllGather;
            cases.push_back(wanted);
        }
        CHECK(failures(3, cases) == 0);
    }

    TEST_CASE("ranks that call different operations are told so, and the group stays broken") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            float value[1000] = {};
            Call call;
            call.kind = context.rank == 0 ? Kind::kAllreduce : Kind::kAllGather;
            call.dtype = kernels::DType::kF32;
            call.count = context.rank == 0 ? 4 : 2;
            call.input = reinterpret_cast<std::byte*>(value);
            call.output = reinterpret_cast<std::byte*>(value + 500);
            call.deadline = Clock::now() + std::chrono::seconds(30);
            const auto first = context.group.run(call);
            const auto second = context.group.run(call);
            const bool told = !first.ok() && first.error().code == Errc::kMismatch;
            const bool stays = !second.ok() && second.error().code == Errc::kBroken;
            return (told && stays) || complain(context, "not told");
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("ranks that differ about the root are told so at the next operation at the latest") {
        for (const Kind kind : {Kind::kBroadcast, Kind::kReduce, Kind::kGather, Kind::kScatter}) {
            // In tiny lines, beside them, through the slots, and in place.
            for (const std::uint64_t count : {2, 400, 3000, 70'000}) {
                CAPTURE(static_cast<int>(kind));
                CAPTURE(count);
                CHECK(failures_in_threads(3, kPerRank, [&](RankContext& context) {
                          return told_of_another_root(context, kind, count);
                      }) == 0);
            }
        }
    }

    TEST_CASE(
        "ranks that differ about a tiny root are told so by the next operation of another way") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  Call call;
                  call.kind = Kind::kBroadcast;
                  call.root = context.rank;
                  call.count = 1;
                  call.input = call.output = context.place(context.rank, 2 * kMostAhead);
                  call.deadline = Clock::now() + std::chrono::seconds(50);
                  if (!context.group.run(call).ok()) return complain(context, "a root waited");
                  call.count = 2 * kMostAhead;
                  const auto next = context.group.run(call);
                  return (!next.ok() && next.error().code == Errc::kMismatch) ||
                         complain(context, "not told");
              }) == 0);
    }

    TEST_CASE("who waits for a command that the root of a tiny operation never gives is told so") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  Call call;
                  call.kind = Kind::kBroadcast;
                  call.trigger = context.rank == 0 ? Trigger::kAsync : Trigger::kSync;
                  call.count = 8;
                  call.input = call.output = context.place(context.rank, 8);
                  call.deadline = Clock::now() + std::chrono::seconds(50);
                  auto result = context.group.run(call);
                  for (int i = 0; result.ok() && i < 12; ++i) {
                      result = context.group.run(call);
                  }
                  const bool told =
                      !result.ok() && (result.error().code == Errc::kMismatch ||
                                       (context.rank == 0 && result.error().code == Errc::kBroken));
                  return told || complain(context, "%s", describe(result.error()).c_str());
              }) == 0);
    }

    TEST_CASE("the root of tiny broadcasts runs ahead of a rank that is late, and loses nothing") {
        std::atomic<int> given{0};
        CHECK(failures_in_threads(3, kPerRank, [&](RankContext& context) {
                  return received_in_order(context, 200, 4, given);
              }) == 0);
    }

    TEST_CASE("tiny operations with a root mix with all others") {
        std::vector<CollectiveCase> cases;
        for (int i = 0; i < 300; ++i) {
            CollectiveCase wanted;
            wanted.kind = i % 7 == 6   ? Kind::kAllreduce
                          : i % 5 == 4 ? Kind::kReduce
                                       : Kind::kBroadcast;
            // Runs of up to 29 tiny ones; between them slots and buffers in place.
            const std::uint64_t small = i % 4 == 3 ? 900 : 2;  // beside the lines, and in them
            wanted.count = i % 30 != 29 ? small : i % 60 == 29 ? 5000 : 70'000;
            wanted.root = i / 10 % 3;
            wanted.salt = static_cast<std::uint64_t>(i);
            cases.push_back(wanted);
        }
        CHECK(failures(3, cases) == 0);
    }

    TEST_CASE("an all_to_all in which a rank expects what is not sent is refused on all ranks") {
        for (const std::uint64_t wrong : {1, 3}) {
            const int failed = failures_in_threads(3, kPerRank, [&](RankContext& context) {
                std::vector<std::uint64_t> input(16, 7);
                std::vector<std::uint64_t> output(16, 0);
                Call call;
                call.kind = Kind::kAllToAll;
                call.dtype = kernels::DType::kU64;
                call.counts = {2, 2, 2};
                call.recv_counts = {2, 2, context.rank == 1 ? wrong : 2};
                call.input = reinterpret_cast<const std::byte*>(input.data());
                call.output = reinterpret_cast<std::byte*>(output.data());
                call.deadline = Clock::now() + std::chrono::seconds(30);
                const auto result = context.group.run(call);
                if (result.ok() || result.error().code != Errc::kMismatch) {
                    return complain(context, "not told");
                }
                return output == std::vector<std::uint64_t>(16, 0) ||
                       complain(context, "got bytes that nobody sent to it");
            });
            CHECK(failed == 0);
        }
    }

    TEST_CASE("a wait ends at its deadline and breaks the group for the others") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            if (context.rank == 1) return true;  // never comes
            Call barrier;
            barrier.deadline = Clock::now() + std::chrono::milliseconds(50);
            const auto result = context.group.run(barrier);
            return (!result.ok() && result.error().code == Errc::kTimeout) ||
                   complain(context, "no timeout");
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("survivors that meet different dead ranks name the same one") {
        for (int round = 0; round < 10; ++round) {
            std::array<std::atomic<int>, 4> named{-1, -1, -1, -1};
            const int wrong = failures_in_threads(4, 4096, [&](RankContext& context) {
                if (context.rank % 2 == 1) {
                    context.mark_dead(context.rank);
                    return true;
                }
                // Each waits for the rank behind it first, and so rank 0 meets 1, and 2 meets 3.
                Call barrier;
                barrier.deadline = Clock::now() + std::chrono::seconds(60);
                const auto result = context.group.run(barrier);
                if (result.ok() || result.error().code != Errc::kPeer) {
                    return complain(context, "does not speak of a dead rank");
                }
                named[static_cast<std::size_t>(context.rank)] = result.error().detail;
                return true;
            });
            CHECK(wrong == 0);
            // Hosts that share no caches have no exchange that could decide who was first.
            if (Hosts::of_environment().count == 0) CHECK(named[0] == named[2]);
            CHECK((named[0] == 1 || named[0] == 3));
        }
    }

    TEST_CASE("a bad argument is refused by the rank alone and the group goes on") {
        const int wrong = failures_in_threads(2, kPerRank, [](RankContext& context) {
            Call call;
            call.kind = Kind::kBroadcast;
            call.root = 2;
            call.count = 1;
            const auto refused = context.group.run(call);
            CollectiveCase good;
            return !refused.ok() && refused.error().code == Errc::kInvalid &&
                   run_case(context, good);
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("a root that runs ahead through broadcasts is not taken for a rank gone astray") {
        std::vector<CollectiveCase> cases;
        // Emulated hosts move every line by hand.
        const int rounds = Hosts::of_environment().count == 0 ? 300 : 30;
        for (int round = 0; round < rounds; ++round) {
            for (const Kind kind : {Kind::kAllGather, Kind::kBroadcast, Kind::kGather}) {
                CollectiveCase wanted;
                wanted.kind = kind;
                // Through the slots, and every third time in place from the arena.
                wanted.count = round % 3 == 2 ? 70'001 : 1000;
                cases.push_back(wanted);
            }
        }
        CHECK(failures(2, cases) == 0);
        CHECK(failures(3, cases) == 0);
    }
}
