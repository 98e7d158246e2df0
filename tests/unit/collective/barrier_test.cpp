#include "libfabricshm/collective/barrier.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>

using namespace fabricshm;

namespace {

constexpr int kWorld = 2;

// The block of some ranks; this process is rank 0.
struct Block {
    explicit Block(int world = kWorld) : bytes(group_block_bytes(world)) {
        memory.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
        format_group_block(memory.get(), {1, 1, world});
    }
    struct Free {
        void operator()(std::byte* block) const { std::free(block); }
    };
    Bytes bytes;
    std::unique_ptr<std::byte, Free> memory;
};

// When the waiter checks whether its peer lives, the peer raises its clock and dies.
struct LastWords final : VisibilityPolicy {
    void publish(const Access&) noexcept override {}
    void acquire(const Access& access) noexcept override {
        ++looks;
        if (access.touch != TouchPoint::kDeadRead) return;
        if (speaks) peer->clock.store(5);
        peer->dead.store(1);
    }
    bool coherent() const noexcept override { return false; }
    RankWords* peer = nullptr;
    bool speaks = true;
    std::uint64_t looks = 0;
};

// Memory of several kernels. When the waiter checks whether its peer lives, it is counted among the
// sleepers or not; then the peer comes, and nothing wakes a sleeper.
struct OtherKernel final : VisibilityPolicy {
    void publish(const Access&) noexcept override {}
    void acquire(const Access& access) noexcept override {
        if (access.touch != TouchPoint::kDeadRead) return;
        slept = slept || peer->sleepers.load() != 0;
        peer->clock.store(5);
    }
    bool coherent() const noexcept override { return true; }
    bool one_kernel() const noexcept override { return false; }
    RankWords* peer = nullptr;
    bool slept = false;
};

// The waiter waits for rank 1. At one of the looks whether rank 2 lives, rank 2 raises its clock
// and leaves; rank 1 comes three looks later.
struct PassesThrough final : VisibilityPolicy {
    void publish(const Access&) noexcept override {}
    void acquire(const Access& access) noexcept override {
        if (access.touch != TouchPoint::kDeadRead) return;
        if (access.peer == 2 && ++looks == leaves_at) {
            words[2]->clock.store(5);
            words[2]->dead.store(1);
        }
        if (looks >= leaves_at + 3) words[1]->clock.store(5);
    }
    bool coherent() const noexcept override { return false; }
    std::array<RankWords*, 3> words{};
    int leaves_at = 0;
    int looks = 0;
};

struct Waiter {
    Waiter() : barrier(block.memory.get(), 0, kWorld, {&policy, block.memory.get(), block.bytes}) {
        policy.peer = &barrier.words(1);
        Tuning tuning;
        tuning.spins = 0;
        tuning.yields = 0;
        barrier.settle(tuning);
    }
    Block block;
    LastWords policy;
    Barrier barrier;
};

}  // namespace

TEST_SUITE("collective.barrier") {
    TEST_CASE("no rank sleeps on a word that a rank under another kernel raises") {
        const Block block;
        OtherKernel policy;
        Barrier barrier(block.memory.get(), 0, kWorld, {&policy, block.memory.get(), block.bytes});
        policy.peer = &barrier.words(1);
        Tuning tuning;
        tuning.spins = 0;
        tuning.yields = 0;
        for (int rank = 0; rank < kWorld; ++rank) barrier.words(rank).membarrier = 1;
        barrier.settle(tuning);
        CHECK(barrier.fenced());  // a membarrier() ends at the kernel's border
        CHECK(barrier.await(barrier.clock_of(1), 5, 1, TimePoint::max()).ok());
        CHECK_FALSE(policy.slept);
    }

    TEST_CASE("a dead peer is seen soon, however long the tuning says to stay awake") {
        const Block block;
        Barrier barrier(block.memory.get(), 0, kWorld, {});
        Tuning tuning;
        tuning.spins = 100'000;
        tuning.yields = 1'000'000;
        barrier.settle(tuning);
        barrier.words(1).dead.store(1);
        const auto waited = barrier.wait(1, 5, Clock::now() + std::chrono::minutes(1));
        REQUIRE(!waited.ok());
        CHECK(waited.error().code == Errc::kPeer);
    }

    TEST_CASE("so it is where hosts do not share caches") {
        Waiter waiter;
        waiter.policy.speaks = false;
        Tuning tuning;
        tuning.spins = 500'000;
        tuning.yields = 500'000;
        waiter.barrier.settle(tuning);
        const auto waited = waiter.barrier.wait(1, 5, Clock::now() + std::chrono::minutes(1));
        REQUIRE(!waited.ok());
        CHECK(waited.error().code == Errc::kPeer);
        CHECK(waiter.policy.looks < 10'000);
    }

    TEST_CASE("a peer that raises its clock and then dies has been waited for") {
        Waiter waiter;
        CHECK(waiter.barrier.wait(1, 5, Clock::now() + std::chrono::minutes(1)).ok());
    }

    TEST_CASE("nor is a third rank missed that comes and leaves between two looks at it") {
        for (int leaves_at = 1; leaves_at <= 12; ++leaves_at) {
            CAPTURE(leaves_at);
            const Block block(3);
            PassesThrough policy;
            Barrier barrier(block.memory.get(), 0, 3, {&policy, block.memory.get(), block.bytes});
            for (int rank = 0; rank < 3; ++rank) {
                policy.words[static_cast<std::size_t>(rank)] = &barrier.words(rank);
            }
            policy.leaves_at = leaves_at;
            Tuning tuning;
            tuning.spins = 0;
            tuning.yields = 0;
            barrier.settle(tuning);
            CHECK(barrier.wait(1, 5, Clock::now() + std::chrono::minutes(1)).ok());
            CHECK(policy.looks >= leaves_at + 3);
        }
    }

    TEST_CASE("a peer that dies without is named") {
        Waiter waiter;
        waiter.policy.speaks = false;
        const auto waited = waiter.barrier.wait(1, 5, Clock::now() + std::chrono::minutes(1));
        CHECK(waited.error().code == Errc::kPeer);
        CHECK(waited.error().detail == 1);
    }
}
