// The direct engine when the group breaks under it: alone, next to words that a peer might have
// left.

#include <doctest/doctest.h>

#include <cstring>

#include "libfabricshm/collective/operation.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;

namespace {

constexpr int kWorld = 2;
constexpr Bytes kPerRank = 64 * kKiB;

// Rank 0 of two in the middle of an operation. Its peer has raised its clock to the end of it and
// gone: by a deadline that passed while rank 0 had no core, for example.
class Survivor {
  public:
    explicit Survivor(Kind kind, Bytes bytes)
        : arena_(kWorld, kPerRank), state_(arena_.place(0), arena_.block()) {
        call_.kind = kind;
        call_.dtype = kernels::DType::kI32;
        call_.count = bytes / sizeof(std::int32_t);
        call_.root = 1;
        call_.deadline = Clock::now() + std::chrono::seconds(60);
        state_.base = 2;
        state_.barrier.words(1).clock.store(100);
        for (int rank = 0; rank < kWorld; ++rank) {
            const auto at = static_cast<std::size_t>(rank);
            std::byte* memory = arena_.base() + group_block_bytes(kWorld);
            inputs_[at] = memory + kPerRank * at;
            outputs_[at] = inputs_[at] + kPerRank / 2;
            std::memset(inputs_[at], 1, bytes);
        }
    }

    GroupState& state() { return state_; }

    Result<void> run() {
        const Bytes bytes = call_.count * sizeof(std::int32_t);
        const PoisonGuard guard;
        Operation operation{state_, call_};
        operation.guard = &guard;
        operation.largest_part = bytes;
        operation.next = state_.base;
        operation.all_in_arena = true;
        operation.inputs = inputs_;
        operation.outputs = outputs_;
        return run_direct(operation);
    }

  private:
    test_support::TestArena arena_;
    GroupState state_;
    Call call_;
    Pointers inputs_{};
    Pointers outputs_{};
};

}  // namespace

TEST_SUITE_BEGIN("collective.direct");

TEST_CASE("a rank that leaves out its part of a broken group's work does not call it a success") {
    for (const Kind kind :
         {Kind::kAllreduce, Kind::kBroadcast, Kind::kReduceScatter, Kind::kScan}) {
        for (const Bytes claim_from : {Bytes{1} << 40, Bytes{64}}) {  // own parts, claimed chunks
            Survivor survivor(kind, 4096);
            survivor.state().tuning.claim_from = claim_from;
            survivor.state().barrier.fail(Errc::kTimeout, 0);
            const auto result = survivor.run();
            REQUIRE_FALSE(result.ok());
            CHECK(result.error().code == Errc::kBroken);
        }
    }
}

TEST_CASE("a rank that leaves out work does not come to the barrier that calls the work complete") {
    Survivor survivor(Kind::kAllreduce, 4096);
    survivor.state().barrier.fail(Errc::kPeer, 1);
    const auto result = survivor.run();
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == Errc::kPeer);
    CHECK(result.error().detail == 1);
    CHECK(survivor.state().barrier.words(0).clock.load() == 0);
}

TEST_CASE("a rank whose group is whole does its part and comes to the barrier") {
    Survivor survivor(Kind::kAllreduce, 4096);
    CHECK(survivor.run().ok());
    CHECK(survivor.state().barrier.words(0).clock.load() == 2);
}

TEST_SUITE_END();
