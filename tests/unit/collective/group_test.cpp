// Collectives between threads, so that the thread sanitizer sees all ranks; processes are in
// tests/multiproc/collective.

#include "libfabricshm/collective/group.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <thread>

#include "kernels/reduce.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr Bytes kPerRank = 8 * kMiB;
constexpr Bytes kMaxAhead = 16 * kKiB;  // above it no operation is part of a run

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
          Kind::kGather, Kind::kScatter, Kind::kAllToAll, Kind::kScan, Kind::kExscan}) {
        const bool whole = !row_of(kind).takes_counts;
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

// The kinds that can have one output for all ranks, in every size class: tiny, next to tiny lines,
// slots, direct, claimed chunks.
std::vector<CollectiveCase> every_shared_output(Algorithm algorithm) {
    std::vector<CollectiveCase> cases;
    for (const Kind kind : {Kind::kAllreduce, Kind::kAllGather, Kind::kBroadcast}) {
        for (const Placement placement : {Placement::kSharedResult, Placement::kSharedInPlace}) {
            for (const std::uint64_t count : {0, 1, 2, 14, 139, 150, 250, 1000, 4100, 70'001}) {
                for (const Trigger trigger : {Trigger::kAsync, Trigger::kSync}) {
                    const bool in_lines = placement == Placement::kSharedInPlace &&
                                          kind == Kind::kAllGather && count != 0;
                    // Parts in place that are not aligned to lines have two writers for a line.
                    if (in_lines && Hosts::of_environment().count != 0) continue;
                    CollectiveCase wanted;
                    wanted.kind = kind;
                    wanted.placement = placement;
                    wanted.count = count;
                    wanted.algorithm = algorithm;
                    wanted.trigger = trigger;
                    // Other values than the last case left there: emulated hosts do not notice a
                    // store of what a word holds already.
                    wanted.salt = cases.size();
                    cases.push_back(wanted);
                }
            }
        }
    }
    return cases;
}

Call shared_call(RankContext& context, Kind kind, std::uint64_t count) {
    Call call;
    call.kind = kind;
    call.dtype = kernels::DType::kI32;
    call.count = count;
    call.flags = kSharedOutput;
    call.input = context.place(context.rank, count * 4);
    const Bytes parts = kind == Kind::kAllGather ? static_cast<Bytes>(context.world) : 1;
    call.output = context.place(context.world, parts * count * 4);
    call.deadline = Clock::now() + std::chrono::seconds(50);
    return call;
}

bool run_barrier(RankContext& context, TimePoint deadline) {
    Call barrier;
    barrier.deadline = deadline;
    return context.group.run(barrier).ok();
}

// One rank writes into the shared output as soon as its own call has returned; when all have, what
// it wrote is still there.
bool keeps_what_the_first_wrote(RankContext& context, Kind kind, std::uint64_t count, int rounds) {
    const Call call = shared_call(context, kind, count);
    const Bytes bytes = output_bytes(call, context.rank, context.world);
    for (int round = 0; round < rounds; ++round) {
        std::memset(const_cast<std::byte*>(call.input), 1, count * 4);
        if (const auto result = context.group.run(call); !result.ok())
            return report(context, "%s", describe(result.error()).c_str());
        const bool writes = context.rank == round % context.world;
        if (writes) std::memset(call.output, 0x77, bytes);
        if (!run_barrier(context, call.deadline)) return report(context, "barrier");
        const auto kept = [](std::byte value) { return value == std::byte{0x77}; };
        if (writes && !std::all_of(call.output, call.output + bytes, kept))
            return report(context, "kind %d count %lu: overwritten", int(kind), count);
        if (!run_barrier(context, call.deadline)) return report(context, "barrier");
    }
    return true;
}

// Until another rank sleeps on the clock of this one, or along a tree on its release. Where hosts
// share no caches none ever does.
void await_sleeper(const RankContext& context) {
    const GroupLayout layout = GroupLayout::of(context.world);
    auto& words = reinterpret_cast<RankWords*>(context.arena + layout.ranks)[context.rank];
    auto& tree = reinterpret_cast<TreeWords*>(context.arena + layout.tree)[context.rank];
    if (!context.view.one_kernel()) return;  // there a rank that waits does not sleep
    while (!context.view.active() && words.sleepers.load() == 0 &&
           tree.release.sleepers.load() == 0) {
        std::this_thread::yield();
    }
}

// Every rank's output begins `apart` bytes behind that of the rank before.
Result<void> run_staggered(RankContext& context, std::uint64_t count, Bytes apart) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = kernels::DType::kI32;
    call.count = count;
    context.place(-1, 0);
    call.input = context.place(context.rank, count * 4);
    call.output =
        context.place(context.world, count * 4) + apart * static_cast<Bytes>(context.rank);
    call.deadline = Clock::now() + std::chrono::seconds(50);
    return context.group.run(call);
}

// What rank `rank` has at element `index`, as bits of its own: for floats sums that round.
void fill_input(std::byte* to, kernels::DType dtype, int rank, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        const float value =
            (1.0F +
             static_cast<float>((i * 37 + static_cast<std::uint64_t>(rank) * 11) % 64) / 61.0F) *
            (rank % 3 == 0 ? -3.0F : 1.0F);
        if (dtype == kernels::DType::kF32) {
            std::memcpy(to + i * 4, &value, 4);
        } else {
            std::uint32_t bits;
            std::memcpy(&bits, &value, 4);
            bits >>= 16;
            std::memcpy(to + i * 2, &bits, 2);
        }
    }
}

// Whether a scan gives this rank the bits of reducing the inputs of the ranks up to it at once.
bool scans_in_rank_order(RankContext& context, const CollectiveCase& wanted) {
    const Bytes bytes = wanted.count * kernels::size_of(wanted.dtype);
    std::vector<std::byte> own(2 * bytes);
    std::byte* input = own.data();
    std::byte* output = own.data() + bytes;
    if (wanted.placement == Placement::kArena) {
        context.place(-1, 0);
        input = context.place(context.rank, bytes);
        output = context.place(context.rank, bytes);
    }
    Call call;
    call.kind = wanted.kind;
    call.dtype = wanted.dtype;
    call.algorithm = wanted.algorithm;
    call.count = wanted.count;
    call.input = input;
    call.output = output;
    call.deadline = Clock::now() + std::chrono::seconds(50);
    fill_input(input, wanted.dtype, context.rank, wanted.count);
    const auto result = context.group.run(call);
    if (!result.ok()) return report(context, "%s", describe(result.error()).c_str());
    const int ranks = wanted.kind == Kind::kScan ? context.rank + 1 : context.rank;
    if (ranks == 0) return true;
    std::vector<std::vector<std::byte>> inputs(static_cast<std::size_t>(ranks),
                                               std::vector<std::byte>(bytes));
    std::vector<const void*> sources;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        fill_input(inputs[rank].data(), wanted.dtype, static_cast<int>(rank), wanted.count);
        sources.push_back(inputs[rank].data());
    }
    std::vector<std::byte> right(bytes);
    void* destination = right.data();
    kernels::reduce(
        {wanted.dtype, wanted.op, sources.data(), ranks, &destination, 1, wanted.count});
    if (std::memcmp(right.data(), output, bytes) == 0) return true;
    return report(context, "kind %d count %lu: other bits", int(wanted.kind), wanted.count);
}

// Rank 0 believes in root 1, the others in root 0: no rank that is a root hears of one that waits.
// Scans have no root: there rank 0 believes in another kind.
bool told_of_another_root(RankContext& context, Kind kind, std::uint64_t count) {
    Call call;
    call.kind = kind;
    if (kind == Kind::kScan && context.rank == 0) call.kind = Kind::kExscan;
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
    // The next ones may be rooted as well, and this rank their root, which waits for no other.
    Call next;
    next.kind = Kind::kBroadcast;
    next.count = 1;
    next.root = context.rank;
    next.input = next.output = call.output;
    next.deadline = call.deadline;
    // In a run 23 may pass before ranks that wait for no other are compared.
    const int most = count * 4 <= kMaxAhead ? 24 : 1;
    for (int passed = 0; passed < most; ++passed) {
        if (told(context.group.run(next))) return true;
    }
    return report(context, "kind %d: not reported", int(kind));
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
        if (!result.ok() || value != number) return report(context, "number %d: %d", number, value);
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

    TEST_CASE(
        "every algorithm that is not for allreduce alone gives the right bytes of every kind") {
        for (const Algorithm algorithm :
             {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kStaged}) {
            for (const Placement placement : {Placement::kArena, Placement::kMixed}) {
                std::vector<CollectiveCase> cases;
                for (const std::uint64_t count : {1, 300, 70001}) {
                    for (CollectiveCase wanted : every_kind(count, placement, false)) {
                        wanted.algorithm = algorithm;
                        cases.push_back(wanted);
                    }
                }
                CAPTURE(static_cast<int>(algorithm));
                CAPTURE(static_cast<int>(placement));
                CHECK(failures(3, cases) == 0);
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
                        // The other ways store a result for each rank, and refuse the flag.
                        if (shares && algorithm != Algorithm::kDirect) continue;
                        cases.push_back(wanted);
                    }
                }
            }
        }
        CHECK(failures(2, cases) == 0);
        CHECK(failures(5, cases) == 0);
    }

    TEST_CASE("scans give the same bits by every way that serves them") {
        std::vector<CollectiveCase> cases;
        for (const Kind kind : {Kind::kScan, Kind::kExscan}) {
            for (const Algorithm algorithm :
                 {Algorithm::kAuto, Algorithm::kFlat, Algorithm::kDirect, Algorithm::kStaged}) {
                for (const Placement placement : {Placement::kArena, Placement::kPrivate}) {
                    for (const kernels::DType dtype :
                         {kernels::DType::kF32, kernels::DType::kBF16}) {
                        for (const std::uint64_t count : {1, 200, 9001, 70'000}) {
                            CollectiveCase wanted;
                            wanted.kind = kind;
                            wanted.algorithm = algorithm;
                            wanted.placement = placement;
                            wanted.dtype = dtype;
                            wanted.count = count;
                            cases.push_back(wanted);
                        }
                    }
                }
            }
        }
        for (const int world : {1, 2, 5}) {
            CAPTURE(world);
            CHECK(failures_in_threads(world, kPerRank, [&](RankContext& context) {
                      return std::all_of(cases.begin(), cases.end(), [&](const auto& each) {
                          return scans_in_rank_order(context, each);
                      });
                  }) == 0);
        }
    }

    TEST_CASE("scans start at the command of rank 0") {
        std::vector<CollectiveCase> cases;
        for (const Kind kind : {Kind::kScan, Kind::kExscan}) {
            for (const Placement placement :
                 {Placement::kArena, Placement::kInPlace, Placement::kPrivateInPlace}) {
                for (const std::uint64_t count : {0, 3, 5000}) {
                    CollectiveCase wanted;
                    wanted.kind = kind;
                    wanted.trigger = Trigger::kSync;
                    wanted.placement = placement;
                    wanted.count = count;
                    cases.push_back(wanted);
                }
            }
        }
        CHECK(failures(3, cases) == 0);
    }

    TEST_CASE(
        "one output for all ranks has the result at every size, with a rank in place or not") {
        for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kDirect}) {
            for (const int world : {1, 2, 3, 4}) {
                CAPTURE(world);
                CHECK(failures(world, every_shared_output(algorithm)) == 0);
            }
        }
    }

    TEST_CASE("a rank may write into a shared output once its call has returned") {
        for (const Kind kind : {Kind::kAllreduce, Kind::kBroadcast, Kind::kAllGather}) {
            for (const std::uint64_t count : {2, 139, 250, 1000, 4000, 20'000}) {
                CHECK(failures_in_threads(3, kPerRank, [&](RankContext& context) {
                          return keeps_what_the_first_wrote(context, kind, count, 60);
                      }) == 0);
            }
        }
    }

    TEST_CASE("aligned parts of a shared output may be gathered where they are, on all hosts") {
        CHECK(failures_in_threads(3, kPerRank, [&](RankContext& context) {
                  for (const std::uint64_t count : {16, 1024, 20'000}) {
                      context.place(-1, 0);
                      Call call = shared_call(context, Kind::kAllGather, count);
                      std::byte* part = call.output + count * 4 * Bytes(context.rank);
                      std::memset(part, 1 + context.rank, count * 4);
                      call.input = part;
                      if (!context.group.run(call).ok()) return report(context, "refused");
                      for (std::uint64_t byte = 0; byte < count * 12; ++byte) {
                          if (call.output[byte] != std::byte(1 + byte / (count * 4)))
                              return report(context, "count %lu: byte %lu", count, byte);
                      }
                      if (!run_barrier(context, call.deadline)) return false;
                  }
                  return true;
              }) == 0);
    }

    TEST_CASE("a tuning that sends everything through slots leaves shared outputs right") {
        Tuning tuning;
        tuning.max_flat = 64 * kKiB;
        tuning.forced = Algorithm::kFlat;
        TestArena arena(3, kPerRank);
        arena.set_tuning(tuning);
        const auto deadline = Clock::now() + std::chrono::seconds(50);
        const auto cases = every_shared_output(Algorithm::kAuto);
        CHECK(failures_in_threads(arena, deadline, [&](RankContext& context) {
                  return std::all_of(cases.begin(), cases.end(),
                                     [&](const auto& wanted) { return run_case(context, wanted); });
              }) == 0);
    }

    TEST_CASE("outputs of different ranks that overlap are refused by all, and the group goes on") {
        CHECK(failures_in_threads(3, kPerRank, [](RankContext& context) {
                  for (const Bytes apart : {0, 4, 4096}) {
                      const auto result = run_staggered(context, 2000, apart);
                      if (result.ok() || result.error().code != Errc::kInvalid)
                          return report(context, "not refused: %lu", apart);
                  }
                  return run_staggered(context, 2000, 8000).ok() ||
                         report(context, "refused although apart");
              }) == 0);
    }

    TEST_CASE("a group that checks buffers finds overlapping outputs at every size") {
        Tuning tuning;
        tuning.check_buffers = true;
        // The arrival stands before an operation along a tree, too.
        if (std::getenv("FABRIC_TEST_TREE") != nullptr) tuning.tree_world = 2;
        TestArena arena(3, kPerRank);
        arena.set_tuning(tuning);
        const auto deadline = Clock::now() + std::chrono::seconds(50);
        CHECK(failures_in_threads(arena, deadline, [](RankContext& context) {
                  for (const std::uint64_t count : {1, 100, 200, 2000}) {
                      const auto result = run_staggered(context, count, 0);
                      if (result.ok() || result.error().code != Errc::kInvalid)
                          return report(context, "not refused: %lu", count);
                      if (!run_staggered(context, count, count * 4).ok())
                          return report(context, "refused although apart: %lu", count);
                  }
                  for (const CollectiveCase& wanted : every_kind(300, Placement::kMixed, false)) {
                      if (!run_case(context, wanted)) return false;
                  }
                  return true;
              }) == 0);
    }

    TEST_CASE("a shared output that differs, or lies outside the arena, is refused by all ranks") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  Call call = shared_call(context, Kind::kAllreduce, 10);
                  Call differs = call;
                  differs.output += static_cast<Bytes>(context.rank) * 4;
                  std::vector<std::byte> own(40);
                  Call outside = call;
                  if (context.rank == 1) outside.input = own.data();
                  for (const Call& wrong : {differs, outside}) {
                      const auto result = context.group.run(wrong);
                      if (result.ok() || result.error().code != Errc::kInvalid)
                          return report(context, "not refused");
                  }
                  return context.group.run(call).ok() || report(context, "refused");
              }) == 0);
    }

    TEST_CASE(
        "a started operation has its whole timeout once it begins, however long it was queued") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  std::vector<float> value(100, 1);
                  Call call;
                  call.kind = Kind::kAllreduce;
                  call.dtype = kernels::DType::kF32;
                  call.count = value.size();
                  call.input = call.output = reinterpret_cast<std::byte*>(value.data());
                  // Passed already, as it may be for an operation behind long ones.
                  call.deadline = Clock::now() - std::chrono::seconds(1);
                  call.timeout = std::chrono::seconds(50);
                  // Rank 0 comes when the other sleeps: a wait that turns slow checks its deadline.
                  if (context.rank == 0) await_sleeper(context);
                  const auto request = context.group.start(call);
                  return (request.ok() && request.value()->wait().ok()) ||
                         report(context, "the deadline of the queue counted");
              }) == 0);
    }

    TEST_CASE("a rank that leaves ends the waits of the others at once, with its number") {
        // The deadline of the others is far: only the leaving can end their waits in time.
        CHECK(failures_in_threads(4, kPerRank, [](RankContext& context) {
                  const auto deadline = Clock::now() + std::chrono::hours(1);
                  if (!run_barrier(context, deadline)) return report(context, "barrier");
                  if (context.rank == 2) return true;  // leaves, while the others go on
                  Call call;
                  call.kind = context.rank == 3 ? Kind::kRecv : Kind::kBarrier;
                  call.peer = 2;
                  call.deadline = deadline;
                  const auto result = context.group.run(call);
                  const bool named = !result.ok() && result.error().code == Errc::kPeer &&
                                     result.error().detail == 2;
                  return named || report(context, "not named");
              }) == 0);
    }

    TEST_CASE(
        "a rank that has left and ended is no reason for the group to end; one that died is") {
        std::latch checked(2);
        CHECK(failures_in_threads(3, kPerRank, [&](RankContext& context) {
                  const auto deadline = Clock::now() + std::chrono::hours(1);
                  if (!run_barrier(context, deadline)) return report(context, "barrier");
                  if (context.rank == 2) return true;  // leaves
                  if (context.rank == 0) {
                      checked.arrive_and_wait();
                      return true;
                  }
                  Call call;
                  call.kind = Kind::kRecv;
                  call.peer = 2;
                  call.deadline = deadline;
                  const bool left = !context.group.run(call).ok();
                  const bool well = context.group.check().ok();
                  context.mark_dead(2);
                  const bool still_well = context.group.check().ok();
                  context.mark_dead(0);
                  const auto found = context.group.check();
                  checked.arrive_and_wait();
                  if (!left || !well || !still_well) return report(context, "left");
                  const bool named =
                      !found.ok() && found.error().code == Errc::kPeer && found.error().detail == 0;
                  return named || report(context, "died");
              }) == 0);
    }

    TEST_CASE("an operation that a rank did its part of completes after that rank has left") {
        for (int round = 0; round < 200; ++round) {
            CHECK(failures_in_threads(3, kPerRank, [](RankContext& context) {
                      CollectiveCase wanted;
                      wanted.count = 5000;
                      return run_case(context, wanted);  // and leaves as soon as it has its result
                  }) == 0);
        }
    }

    TEST_CASE("every type is reduced by every operation it supports") {
        for (int type = 0; type < kernels::kDTypeCount; ++type) {
            std::vector<CollectiveCase> cases;
            for (int op = 0; op < kernels::kReduceOpCount; ++op) {
                CollectiveCase wanted;
                wanted.dtype = static_cast<kernels::DType>(type);
                wanted.op = static_cast<kernels::ReduceOp>(op);
                if (!kernels::is_supported(wanted.dtype, wanted.op)) continue;
                if (kernels::rounds_once(wanted.dtype) && wanted.op == kernels::ReduceOp::kAvg)
                    continue;
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

    TEST_CASE("ranks that call different operations get an error, and the group stays broken") {
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
            return (told && stays) || report(context, "not reported");
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("ranks that differ about the root get an error at the next operation at the latest") {
        for (const Kind kind :
             {Kind::kBroadcast, Kind::kReduce, Kind::kGather, Kind::kScatter, Kind::kScan}) {
            // In tiny lines, next to them, through the slots, and in place.
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
        "ranks that differ about a tiny root get an error by the next operation of another way") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  Call call;
                  call.kind = Kind::kBroadcast;
                  call.root = context.rank;
                  call.count = 1;
                  call.input = call.output = context.place(context.rank, 2 * kMaxAhead);
                  call.deadline = Clock::now() + std::chrono::seconds(50);
                  if (!context.group.run(call).ok()) return report(context, "a root waited");
                  call.count = 2 * kMaxAhead;
                  const auto next = context.group.run(call);
                  return (!next.ok() && next.error().code == Errc::kMismatch) ||
                         report(context, "not reported");
              }) == 0);
    }

    TEST_CASE(
        "a rank that waits for a command that the root of a tiny operation never gives gets an "
        "error") {
        CHECK(failures_in_threads(2, kPerRank, [](RankContext& context) {
                  Call call;
                  call.kind = Kind::kBroadcast;
                  call.trigger = context.rank == 0 ? Trigger::kAsync : Trigger::kSync;
                  call.count = 8;
                  call.input = call.output = context.place(context.rank, 8);
                  call.deadline = Clock::now() + std::chrono::seconds(50);
                  auto result = context.group.run(call);
                  for (int i = 0; result.ok() && i < 24; ++i) {
                      result = context.group.run(call);
                  }
                  const bool told =
                      !result.ok() && (result.error().code == Errc::kMismatch ||
                                       (context.rank == 0 && result.error().code == Errc::kBroken));
                  return told || report(context, "%s", describe(result.error()).c_str());
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
                          : i % 3 == 2 ? Kind::kScan
                          : i % 8 == 1 ? Kind::kExscan
                                       : Kind::kBroadcast;
            // Runs of up to 29 tiny ones; between them slots and buffers in place.
            const std::uint64_t small = i % 4 == 3 ? 900 : 2;  // next to the lines, and in them
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
                    return report(context, "not reported");
                }
                return output == std::vector<std::uint64_t>(16, 0) ||
                       report(context, "got bytes that no rank sent to it");
            });
            CHECK(failed == 0);
        }
    }

    TEST_CASE("a wait ends at its deadline and breaks the group for the others") {
        std::latch ended(1);
        const int wrong = failures_in_threads(2, kPerRank, [&](RankContext& context) {
            if (context.rank == 1) {
                ended.wait();  // stays in the group, and never comes
                return true;
            }
            Call barrier;
            barrier.deadline = Clock::now() + std::chrono::milliseconds(50);
            const auto result = context.group.run(barrier);
            ended.count_down();
            return (!result.ok() && result.error().code == Errc::kTimeout) ||
                   report(context, "no timeout");
        });
        CHECK(wrong == 0);
    }

    TEST_CASE("survivors that find different dead ranks name the same one") {
        for (int round = 0; round < 10; ++round) {
            std::array<std::atomic<int>, 4> named{-1, -1, -1, -1};
            const int wrong = failures_in_threads(4, 4096, [&](RankContext& context) {
                if (context.rank % 2 == 1) {
                    context.mark_dead(context.rank);
                    return true;
                }
                // Each waits for the rank behind it first, and so rank 0 finds 1, and 2 finds 3.
                Call barrier;
                barrier.deadline = Clock::now() + std::chrono::seconds(60);
                const auto result = context.group.run(barrier);
                if (result.ok() || result.error().code != Errc::kPeer) {
                    return report(context, "does not speak of a dead rank");
                }
                named[static_cast<std::size_t>(context.rank)] = result.error().detail;
                return true;
            });
            CHECK(wrong == 0);
            // Hosts that share no caches have no exchange that could decide which was first.
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

    TEST_CASE("a call like the last one is checked where it differs, and ends at its own timeout") {
        std::atomic<bool> ended{false};
        CHECK(failures_in_threads(2, kPerRank, [&](RankContext& context) {
                  auto* values = reinterpret_cast<float*>(context.place(context.rank, 256));
                  Call call;
                  call.kind = Kind::kAllreduce;
                  call.dtype = kernels::DType::kF32;
                  call.count = 2;
                  call.deadline = Clock::now() + std::chrono::seconds(50);
                  for (int round = 0; round < 40; ++round) {
                      float* input = values + round % 3 * 4;
                      float* output = values + 16 + round % 5 * 4;
                      input[0] = static_cast<float>(round);
                      input[1] = static_cast<float>(context.rank);
                      call.input = reinterpret_cast<std::byte*>(input);
                      call.output = reinterpret_cast<std::byte*>(output);
                      if (!context.group.run(call).ok()) return report(context, "run");
                      const float twice = static_cast<float>(2 * round);
                      if (output[0] != twice || output[1] != 1) return report(context, "sum");
                      Call bad = call;
                      bad.output = nullptr;
                      const bool null = context.group.run(bad).ok();
                      bad.output = reinterpret_cast<std::byte*>(input + 1);
                      if (null || context.group.run(bad).ok()) return report(context, "refuse");
                  }
                  const std::uint64_t kept = context.group.kept();
                  // What goes along a tree is worked out each time.
                  const bool tree = std::getenv("FABRIC_TEST_TREE") != nullptr;
                  if (kept == 0) return tree || report(context, "not kept");
                  if (context.rank == 1) {
                      while (!ended) std::this_thread::yield();
                      return true;
                  }
                  const auto late =
                      context.group.repeat(call.input, call.output, std::chrono::milliseconds(20));
                  ended = true;
                  const bool timeout = !late.ok() && late.error().code == Errc::kTimeout;
                  return timeout || report(context, "no timeout");
              }) == 0);
    }

    TEST_CASE("a receiver of tiny broadcasts posts in the turns that are compared alone") {
        TestArena arena(2, kMiB, {});
        const auto deadline = Clock::now() + std::chrono::seconds(50);
        CHECK(failures_in_threads(arena, deadline, [&](RankContext& context) {
                  std::byte value[8] = {};
                  Call call;
                  call.kind = Kind::kBroadcast;
                  call.count = sizeof value;
                  call.input = call.output = value;
                  call.deadline = deadline;
                  for (std::uint64_t turn = 0; turn < kTinyTurns; ++turn) {
                      if (!context.group.run(call).ok()) return report(context, "broadcast");
                  }
                  return true;
              }) == 0);
        auto* slots = reinterpret_cast<TinySlot*>(arena.block() + GroupLayout::of(2).tiny);
        const auto posted = [&](std::uint64_t rank) {
            return std::count_if(slots + rank * kTinyTurns, slots + (rank + 1) * kTinyTurns,
                                 [](const TinySlot& slot) { return slot.flag.load() != 0; });
        };
        CHECK(posted(0) == 32);
        CHECK(posted(1) == 2);
    }

    TEST_CASE("two ranks are crowded when they may use one processor, and not on one each") {
        cpu_set_t all;
        REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
        std::vector<int> processors;
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(cpu, &all)) processors.push_back(cpu);
        }
        // A test on a tree has the tuning that makes one.
        if (processors.size() < 2 || std::getenv("FABRIC_TEST_TREE") != nullptr) return;
        ::setenv("FABRIC_TUNING", "/nonexistent", 1);
        for (const bool same : {false, true}) {
            TestArena arena(2, kMiB, {});
            const auto deadline = Clock::now() + std::chrono::seconds(50);
            std::atomic<int> attached{0};
            std::vector<std::thread> ranks;
            for (int rank = 0; rank < 2; ++rank) {
                ranks.emplace_back([&, rank] {
                    cpu_set_t mine;
                    CPU_ZERO(&mine);
                    CPU_SET(processors[same ? 0 : static_cast<std::size_t>(rank)], &mine);
                    ::sched_setaffinity(0, sizeof mine, &mine);
                    attached += Group::attach(arena.place(rank), deadline).ok() ? 1 : 0;
                });
            }
            for (std::thread& rank : ranks) rank.join();
            REQUIRE(attached == 2);
            const auto* header = reinterpret_cast<const GroupHeader*>(arena.block());
            const Tuning expected = default_tuning(2, same ? 1 : 2, kMiB);
            CHECK(unpack_tuning(header->tuning).spins == expected.spins);
        }
        ::unsetenv("FABRIC_TUNING");
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
