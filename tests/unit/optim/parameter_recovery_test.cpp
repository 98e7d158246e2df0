// What recovery and a later group make of the words that ranks leave behind: steps that failed in
// threads, and words written by the test itself, as a rank leaves them that is stopped or killed.
// The rule is SGD with rate 1 and gradients that are one number for each slot, so that what every
// element has to be is a subtraction.

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/optim/parameter_set.hpp"
#include "libfabricshm/os/process.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

constexpr std::uint64_t kElements = 9000;

TimePoint soon() {
    return Clock::now() + std::chrono::seconds(60);
}

TimePoint shortly() {
    return Clock::now() + std::chrono::milliseconds(40);
}

ParameterSpec spec_for(int slots) {
    ParameterSpec spec;
    spec.parameters = {{"w", {kElements}, 0}};
    spec.rule = kernels::Rule::kSgd;
    spec.slots = slots;
    return spec;
}

StepCall call_until(TimePoint deadline) {
    StepCall call;
    call.hyper.resize(1);
    call.hyper[0].learning_rate = 1;
    call.deadline = deadline;
    return call;
}

// A formatted set in memory of its own.
class Block {
  public:
    explicit Block(int slots)
        : spec(spec_for(slots)),
          layout(ParameterLayout::of(spec)),
          memory_(layout.total + 3 * kPageBytes) {
        void* at = memory_.data() + kPageBytes;
        std::size_t room = memory_.size() - kPageBytes;
        FABRIC_CHECK(std::align(kPageBytes, layout.total, at, room) != nullptr);
        base = static_cast<std::byte*>(at);
        ParameterSet::format(base, spec);
    }
    ParameterHeader& header() const { return *reinterpret_cast<ParameterHeader*>(base); }
    SlotRecord& record(int slot) const {
        return reinterpret_cast<SlotRecord*>(base + layout.slots)[slot];
    }
    /// As if this process, or one that has ended, were in a step in `slot`.
    void enter(int slot, bool alive) const {
        const ProcessIdentity self = own_identity().value();
        record(slot).owner = static_cast<std::uint32_t>(self.pid);
        record(slot).start_time = self.start_time + (alive ? 0 : 1);
        record(slot).pid_namespace = self.pid_namespace;
        record(slot).inside = 1;
    }
    Result<std::unique_ptr<ParameterSet>> attach(Group& group) const {
        return ParameterSet::attach(group, {}, base, layout.total, spec, soon());
    }
    /// Whether nothing was stored next to it.
    bool is_alone() const {
        const auto before = base - memory_.data();
        const auto behind = before + static_cast<std::ptrdiff_t>(layout.total);
        const auto is_zero = [](std::byte byte) { return byte == std::byte{}; };
        return std::all_of(memory_.begin(), memory_.begin() + before, is_zero) &&
               std::all_of(memory_.begin() + behind, memory_.end(), is_zero);
    }
    ParameterSpec spec;
    ParameterLayout layout;
    std::byte* base = nullptr;

  private:
    std::vector<std::byte> memory_;
};

void fill_gradient(const ParameterSet& set, float value) {
    std::fill_n(reinterpret_cast<float*>(set.gradient(0)), kElements, value);
}

bool all_are(const ParameterSet& set, float value) {
    for (std::uint64_t i = 0; i < kElements; ++i) {
        if (set.values(0)[i] != value) return false;
    }
    return true;
}

std::unique_ptr<Group> alone(TestArena& arena) {
    return std::move(Group::attach(arena.place(0), soon()).value());
}

// As if the rank of `slot` had come to the first step when the others had given it up, and were in
// it still.
void come_late(const Block& block, int slot) {
    SlotRecord& late = block.record(slot);
    late.signature[1] = block.record(0).signature[1];
    late.weight[1] = std::nan("");
    late.ready = 1;
    block.enter(slot, true);
}

Errc code_of(const Result<std::unique_ptr<ParameterSet>>& result) {
    return result.ok() ? Errc{} : result.error().code;
}

}  // namespace

TEST_SUITE("optim.parameter_recovery") {
    TEST_CASE("a set that a live process is in stays busy, however often it is asked for") {
        const Block block(2);
        block.enter(0, true);
        TestArena arena(1, 64 * kKiB);
        const auto group = alone(arena);
        CHECK(code_of(block.attach(*group)) == Errc::kBusy);
        CHECK(code_of(block.attach(*group)) == Errc::kBusy);
        block.record(0).inside = 0;
        CHECK(block.attach(*group).ok());
    }

    TEST_CASE("a rank in the place of a process that died in a step is not in it") {
        const Block block(2);
        block.enter(0, false);
        TestArena arena(1, 64 * kKiB);
        const auto group = alone(arena);
        REQUIRE(block.attach(*group).ok());
        CHECK(block.attach(*group).ok());
    }

    TEST_CASE("a set of which some shards are stepped and others are not begun is refused") {
        const Block block(3);
        for (const int slot : {0, 1}) {
            block.record(slot).ready = 5;
            block.record(slot).done = block.record(slot).started = 4;
        }
        // Slot 2 is of a rank that died in attempt 3, which was dropped.
        block.record(2).ready = 3;
        TestArena arena(1, 64 * kKiB);
        const auto group = alone(arena);
        CHECK(block.attach(*group).ok());
        block.record(1).started = 5;
        CHECK(code_of(block.attach(*group)) == Errc::kCorrupt);
        block.record(1).done = 5;
        CHECK(code_of(block.attach(*group)) == Errc::kCorrupt);
        block.record(0).started = block.record(0).done = 5;
        CHECK(block.attach(*group).ok());
    }

    TEST_CASE("a rank that has not closed a set finds that others have taken it over") {
        const Block block(1);
        TestArena first(1, 64 * kKiB), second(1, 64 * kKiB);
        const auto old_group = alone(first), new_group = alone(second);
        const auto old_set = block.attach(*old_group), new_set = block.attach(*new_group);
        REQUIRE((old_set.ok() && new_set.ok()));
        fill_gradient(**new_set, 1);
        const auto late = (*old_set)->step(call_until(soon()));
        REQUIRE(!late.ok());
        CHECK(late.error().code == Errc::kBroken);
        CHECK(all_are(**new_set, 0));
        CHECK((*new_set)->step(call_until(soon())).ok());
        CHECK(all_are(**new_set, -1));
    }

    TEST_CASE("closing a set again that is open a second time leaves that one open") {
        const Block block(1);
        TestArena first(1, 64 * kKiB), second(1, 64 * kKiB);
        const auto old_group = alone(first), new_group = alone(second);
        auto old_set = block.attach(*old_group), new_set = block.attach(*new_group);
        REQUIRE((old_set.ok() && new_set.ok()));
        old_set->reset();
        const auto open = check_closed(block.base, block.layout.total);
        REQUIRE(!open.ok());
        CHECK(open.error().code == Errc::kBusy);
        new_set->reset();
        CHECK(check_closed(block.base, block.layout.total).ok());
    }

    TEST_CASE("a set that others have taken over is not recovered, and stays theirs") {
        const Block block(1);
        TestArena first(1, 64 * kKiB), second(1, 64 * kKiB), third(1, 64 * kKiB);
        const auto old_group = alone(first), new_group = alone(second), other = alone(third);
        const auto old_set = block.attach(*old_group), new_set = block.attach(*new_group);
        REQUIRE((old_set.ok() && new_set.ok()));
        // As if the process that has the slot were in a step.
        block.record(0).inside = 1;
        const auto late = (*old_set)->recover(*other, soon());
        REQUIRE(!late.ok());
        CHECK(late.error().code == Errc::kBroken);
        CHECK(block.record(0).inside == 1);
    }

    TEST_CASE("a count that was set back is the one that another group goes on from") {
        const Block block(3);
        TestArena first(1, 64 * kKiB), second(1, 64 * kKiB);
        const auto group = alone(first), next_group = alone(second);
        {
            const auto set = block.attach(*group);
            REQUIRE(set.ok());
            for (int step = 0; step < 4; ++step) REQUIRE((*set)->step(call_until(soon())).ok());
            // Another slot may have counted in a larger group, and a recovery in the header.
            block.record(2).applied = 4;
            block.header().applied = 4;
            CHECK((*set)->set_steps(1).ok());
        }
        const auto set = block.attach(*next_group);
        REQUIRE(set.ok());
        CHECK((*set)->steps() == 1);
    }

    TEST_CASE("shards are not cut in another way while a step waits for recovery") {
        const Block block(2);
        CHECK(failures_in_threads(2, kMiB, [&](RankContext& context) {
                  const auto set = block.attach(context.group);
                  if (!set.ok()) return false;
                  if (context.rank == 1) return true;
                  const auto stepped = (*set)->step(call_until(shortly()));
                  if (stepped.ok()) return false;
                  const auto shared = (*set)->share({1, 3});
                  return !shared.ok() && shared.error().code == Errc::kBroken;
              }) == 0);
    }

    TEST_CASE("a mismatch that a rank was too late for is dropped by all") {
        const Block block(2);
        TestArena again(2, 64 * kKiB);
        std::barrier<> met(2);
        CHECK(failures_in_threads(2, kMiB, [&](RankContext& context) {
                  const auto set = block.attach(context.group);
                  if (!set.ok()) return false;
                  fill_gradient(**set, 1);
                  met.arrive_and_wait();
                  if (context.rank == 1) {
                      const auto late = (*set)->step(call_until(shortly()));
                      if (late.ok() || late.error().code != Errc::kTimeout) return false;
                      met.arrive_and_wait();
                  } else {
                      met.arrive_and_wait();
                      StepCall other = call_until(soon());
                      other.scale = 2;
                      const auto first = (*set)->step(other);
                      if (first.ok() || first.error().code != Errc::kMismatch) {
                          return report(context, "the first step was no mismatch");
                      }
                      if ((*set)->step(other).ok()) return report(context, "the second step went");
                  }
                  auto group = Group::attach(again.place(context.rank), soon());
                  if (!group.ok()) return false;
                  const auto recovered = (*set)->recover(**group, soon());
                  if (!recovered.ok()) {
                      return report(context, "%s", describe(recovered.error()).c_str());
                  }
                  if (recovered->applied || recovered->step != 0) return false;
                  const auto stepped = (*set)->step(call_until(soon()));
                  return stepped.ok() && stepped->step == 1 && all_are(**set, -1);
              }) == 0);
    }

    TEST_CASE("ranks give up together on one that stays inside, and may call again") {
        const Block block(3);
        // One that lost its processor for the whole time of a try is itself what the other waits
        // for; then both try again in another group, and for longer.
        constexpr std::size_t kTries = 6;
        std::deque<TestArena> smaller;
        for (std::size_t i = 0; i < kTries; ++i) smaller.emplace_back(2, 64 * kKiB);
        std::array<std::atomic<int>, kTries> named_it{};
        std::barrier<> met(3), pair(2);
        CHECK(failures_in_threads(3, kMiB, [&](RankContext& context) {
                  const auto set = block.attach(context.group);
                  if (!set.ok()) return false;
                  fill_gradient(**set, static_cast<float>(3 * context.rank));
                  met.arrive_and_wait();
                  if (context.rank == 2) {
                      met.arrive_and_wait();
                      return true;
                  }
                  if ((*set)->step(call_until(shortly())).ok()) return false;
                  pair.arrive_and_wait();
                  if (context.rank == 0) come_late(block, 2);
                  pair.arrive_and_wait();
                  Result<std::unique_ptr<Group>> group = Error{Errc::kTimeout, 0, ""};
                  auto length = std::chrono::milliseconds(200);
                  bool have_both = false;
                  for (std::size_t i = 0; i < kTries && !have_both; ++i) {
                      group = Group::attach(smaller[i].place(context.rank), soon());
                      if (!group.ok()) return false;
                      const auto first = (*set)->recover(**group, Clock::now() + length);
                      if (first.ok()) return report(context, "recovered with slot 2 inside");
                      const Error& error = first.error();
                      named_it[i] += error.code == Errc::kTimeout && error.detail == 2 ? 1 : 0;
                      pair.arrive_and_wait();
                      have_both = named_it[i] == 2;
                      length *= 2;
                  }
                  if (!have_both) {
                      met.arrive_and_wait();
                      return report(context, "did not name slot 2");
                  }
                  block.record(2).inside = 0;
                  const auto second = (*set)->recover(**group, soon());
                  if (!second.ok()) return report(context, "%s", describe(second.error()).c_str());
                  met.arrive_and_wait();
                  return second->applied && second->step == 1 && all_are(**set, -3);
              }) == 0);
    }

    TEST_CASE("a rank that gives up before the others does not leave them with half a step") {
        const Block block(3);
        TestArena smaller(2, 64 * kKiB), again(2, 64 * kKiB);
        std::barrier<> met(3), pair(2);
        std::atomic<bool> gave_up = false;
        CHECK(failures_in_threads(3, kMiB, [&](RankContext& context) {
                  const auto set = block.attach(context.group);
                  if (!set.ok()) return false;
                  fill_gradient(**set, static_cast<float>(3 * context.rank));
                  met.arrive_and_wait();
                  if (context.rank == 2) {
                      met.arrive_and_wait();
                      return true;
                  }
                  if ((*set)->step(call_until(shortly())).ok()) return false;
                  pair.arrive_and_wait();
                  if (context.rank == 0) come_late(block, 2);
                  pair.arrive_and_wait();
                  auto group = Group::attach(smaller.place(context.rank), soon());
                  if (!group.ok()) return false;
                  if (context.rank == 0) {
                      const auto early =
                          (*set)->recover(**group, Clock::now() + std::chrono::milliseconds(200));
                      if (early.ok()) return report(context, "recovered too early");
                      block.record(2).inside = 0;
                      const auto repeated = (*set)->recover(**group, soon());
                      if (repeated.ok()) return report(context, "the others were elsewhere");
                      gave_up = true;
                  } else if ((*set)->recover(**group, soon()).ok()) {
                      return report(context, "recovered without rank 0");
                  }
                  auto next = Group::attach(again.place(context.rank), soon());
                  if (!next.ok()) return false;
                  const auto recovered = (*set)->recover(**next, soon());
                  met.arrive_and_wait();
                  return recovered.ok() && recovered->applied && all_are(**set, -3);
              }) == 0);
        CHECK(gave_up.load());
    }

    TEST_CASE(
        "whatever stands in the words, recovery and attaching end, and store nothing outside of "
        "the set") {
        std::mt19937_64 random(17);
        for (int round = 0; round < 12; ++round) {
            CAPTURE(round);
            const Block block(2);
            TestArena again(2, 64 * kKiB), last(1, 64 * kKiB);
            std::barrier<> met(2);
            const std::uint64_t seed = random();
            CHECK(failures_in_threads(2, kMiB, [&](RankContext& context) {
                      const auto set = block.attach(context.group);
                      if (!set.ok()) return false;
                      StepCall call = call_until(shortly());
                      call.clip_norm = round % 2;
                      if (context.rank == 0) (void)(*set)->step(call);
                      met.arrive_and_wait();
                      if (context.rank == 1) {
                          (void)(*set)->step(call_until(shortly()));
                          // Words that a step might leave, and others.
                          std::mt19937_64 bits(seed);
                          for (const int slot : {0, 1}) {
                              SlotRecord& of = block.record(slot);
                              const auto any = [&](std::uint64_t usual) {
                                  return bits() % 3 == 0 ? bits() : bits() % usual;
                              };
                              of.ready = any(3);
                              of.measured = any(3);
                              of.done = any(3);
                              of.started = any(3);
                              of.cursor = any(kElements);
                              of.logged = any(kElements);
                              of.finite = static_cast<std::uint32_t>(any(2));
                              for (std::uint64_t& word : of.square_sum) word = bits();
                              of.owner = any(1 << 15);
                              of.inside = static_cast<std::uint32_t>(any(2));
                              if (bits() % 2 == 0) of.signature[1] = block.record(0).signature[1];
                              of.weight[1] = static_cast<double>(any(2));
                          }
                          block.header().resolved = bits() % 3;
                          block.header().era = bits();
                      }
                      met.arrive_and_wait();
                      auto group = Group::attach(again.place(context.rank), soon());
                      if (!group.ok()) return false;
                      const auto until = Clock::now() + std::chrono::milliseconds(200);
                      (void)(*set)->recover(**group, until);
                      (void)(*set)->step(call_until(shortly()));
                      return true;
                  }) == 0);
            const auto group = alone(last);
            (void)block.attach(*group);
            CHECK(block.is_alone());
        }
    }
}
