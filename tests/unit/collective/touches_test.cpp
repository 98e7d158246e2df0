// What crosses between ranks on coherent memory is reported to the policy byte by byte: a model of
// a device charges for it. What is needed where memory is not coherent is in tests/emu/hosts.

#include <doctest/doctest.h>

#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "libfabricshm/collective/mailbox.hpp"
#include "tests/support/collective_cases.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

// Bytes by touch and peer.
class Ledger final : public VisibilityPolicy {
  public:
    void publish(const Access& access) noexcept override { note(access); }
    void acquire(const Access& access) noexcept override { note(access); }
    bool coherent() const noexcept override { return true; }

    Bytes sum(TouchPoint touch) const {
        return sum(touch, [](int) { return true; });
    }
    Bytes sum(TouchPoint touch, const std::function<bool(int)>& counts) const {
        const std::lock_guard lock(mutex_);
        Bytes bytes = 0;
        for (const auto& [key, noted] : bytes_) {
            if (key.first == touch && counts(key.second)) bytes += noted;
        }
        return bytes;
    }

  private:
    void note(const Access& access) {
        const std::lock_guard lock(mutex_);
        bytes_[{access.touch, access.peer}] += access.bytes;
    }
    mutable std::mutex mutex_;
    std::map<std::pair<TouchPoint, int>, Bytes> bytes_;
};

constexpr int kWorld = 3;
constexpr Bytes kBytes = 3 * 64 * 64;  // shares of the same size

// Runs one call on each rank with a ledger each. Buffers lie in the arena, one per rank and kind.
std::vector<Ledger> run(Call call) {
    TestArena arena(kWorld, kMiB, {});
    std::vector<Ledger> ledgers(kWorld);
    std::vector<std::thread> threads;
    std::vector<int> failures(kWorld, 0);
    // One that leaves withdraws what its peer has not taken yet: it writes those lines again.
    std::latch ended(kWorld);
    for (int rank = 0; rank < kWorld; ++rank) {
        threads.emplace_back([&, rank] {
            const auto at = static_cast<std::size_t>(rank);
            GroupPlace place = arena.place(rank);
            place.visibility = &ledgers[at];
            const auto deadline = Clock::now() + std::chrono::seconds(60);
            auto group = Group::attach(place, deadline);
            if (!group.ok()) {
                failures[at] = 1;
                return ended.count_down();
            }
            RankContext context = arena.context(**group);
            Call mine = call;
            mine.deadline = deadline;
            mine.input = context.place(rank, kBytes);
            mine.output = context.place(rank, kBytes);
            if (call.kind == Kind::kSend) {
                mine.kind = rank == 0 ? Kind::kSend : Kind::kRecv;
                mine.peer = rank == 0 ? 1 : 0;
                if (rank == 2) return ended.count_down();
            }
            if (!(*group)->run(mine).ok()) failures[at] = 1;
            ended.arrive_and_wait();
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(std::accumulate(failures.begin(), failures.end(), 0) == 0);
    return ledgers;
}

Call call_of(Kind kind, Algorithm algorithm) {
    Call call;
    call.kind = kind;
    call.algorithm = algorithm;
    call.dtype = kernels::DType::kF32;
    call.count = kBytes / sizeof(float);
    return call;
}

}  // namespace

TEST_SUITE("collective.touches") {
    TEST_CASE("direct: a rank reads its share of every other input and writes it to every output") {
        const auto ledgers = run(call_of(Kind::kAllreduce, Algorithm::kDirect));
        constexpr Bytes kShare = kBytes / kWorld;
        for (int rank = 0; rank < kWorld; ++rank) {
            const Ledger& ledger = ledgers[static_cast<std::size_t>(rank)];
            CHECK(ledger.sum(TouchPoint::kDirectRead) == 2 * kShare);
            CHECK(ledger.sum(TouchPoint::kDirectRead, [&](int peer) { return peer == rank; }) == 0);
            CHECK(ledger.sum(TouchPoint::kDirectWrite) == 2 * kShare);
        }
    }

    TEST_CASE("a broadcast is read by the others alone") {
        const auto ledgers = run(call_of(Kind::kBroadcast, Algorithm::kDirect));
        CHECK(ledgers[0].sum(TouchPoint::kDirectRead) == 0);
        CHECK(ledgers[1].sum(TouchPoint::kDirectRead) == kBytes / kWorld);
        CHECK(ledgers[1].sum(TouchPoint::kDirectRead, [](int peer) { return peer == 0; }) ==
              kBytes / kWorld);
    }

    TEST_CASE("ring: world - 1 chunks are read of the sums, and as many of the results") {
        const auto ledgers = run(call_of(Kind::kAllreduce, Algorithm::kRing));
        constexpr Bytes kChunk = kBytes / kWorld;
        const Ledger& ledger = ledgers[1];
        const auto before = [](int peer) { return peer == 0; };
        CHECK(ledger.sum(TouchPoint::kRingInputRead, before) == kChunk);
        CHECK(ledger.sum(TouchPoint::kRingSumRead, before) == kChunk);
        CHECK(ledger.sum(TouchPoint::kRingResultRead, before) == 2 * kChunk);
        CHECK(ledger.sum(TouchPoint::kRingSum) == 2 * kChunk);
    }

    TEST_CASE(
        "staged: a rank posts the others' shares, reads its own of theirs, and fetches the rest") {
        const auto ledgers = run(call_of(Kind::kAllreduce, Algorithm::kStaged));
        constexpr Bytes kShare = kBytes / kWorld;
        for (int rank = 0; rank < kWorld; ++rank) {
            const Ledger& ledger = ledgers[static_cast<std::size_t>(rank)];
            const auto of_peer = [&](int peer) { return peer == (rank + 1) % kWorld; };
            CHECK(ledger.sum(TouchPoint::kStagedPost) == 2 * kShare);
            CHECK(ledger.sum(TouchPoint::kStagedRead) == 2 * kShare);
            CHECK(ledger.sum(TouchPoint::kStagedRead, of_peer) == kShare);
            CHECK(ledger.sum(TouchPoint::kStagedResult) == kShare);
            CHECK(ledger.sum(TouchPoint::kStagedResultRead) == 2 * kShare);
            CHECK(ledger.sum(TouchPoint::kStagedResultRead, of_peer) == kShare);
        }
    }

    TEST_CASE("a message is written once and read once, and a line announces each piece") {
        Call call = call_of(Kind::kSend, Algorithm::kAuto);
        const auto ledgers = run(call);
        CHECK(ledgers[0].sum(TouchPoint::kMessage) == kBytes);
        CHECK(ledgers[1].sum(TouchPoint::kMessageRead, [](int peer) { return peer == 0; }) ==
              kBytes);
        constexpr Bytes kPieces = (kBytes + Mailbox::kEagerPiece - 1) / Mailbox::kEagerPiece;
        CHECK(ledgers[0].sum(TouchPoint::kSent) == kPieces * kCacheLine);
        CHECK(ledgers[1].sum(TouchPoint::kTaken) == kPieces * kCacheLine);
    }

    TEST_CASE("what only memory without coherence needs is not reported") {
        const auto ledgers = run(call_of(Kind::kAllreduce, Algorithm::kDirect));
        for (const TouchPoint touch : {TouchPoint::kInput, TouchPoint::kShare,
                                       TouchPoint::kResultClean, TouchPoint::kFailure}) {
            CHECK(ledgers[0].sum(touch) == 0);
        }
    }
}
